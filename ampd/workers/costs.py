"""The times that a graph's profile says of a worker group."""

from __future__ import annotations

from ampd.config import Graph, Worker
from ampd.cost_model.scaled import ScaledCostModel
from ampd.policy.types import CostModel
from ampd.profiles import profile_of


def profiled_cost(graph: Graph, group: Worker) -> CostModel | None:
    """The group's cost functions as they run here; None without a profile. Raises ProfileError for one of other engines."""
    if graph.profile is None:
        return None
    model, foreign = graph.model, graph.foreign_profile
    profile = profile_of(
        graph.profile, model=model.served_name, thetas=[group.tensor_parallel], block_size=model.block_size, foreign=foreign
    )
    cost = profile.cost_model(foreign=foreign)
    return ScaledCostModel(cost, group.sim.speed) if group.engine == "sim" and group.sim.speed != 1.0 else cost


def peer_theta(graph: Graph, group: Worker) -> int | None:
    """Theta of the workers that this group reads KV from; None when they differ."""
    thetas = {other.tensor_parallel for other in graph.workers if other.role != group.role}
    return thetas.pop() if len(thetas) == 1 else None
