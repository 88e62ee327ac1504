"""A graph file as the simulator has it: its engines' profile, groups of workers, rules."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from ampd.config.explain import one_line
from ampd.config.schema import Graph, Policy, Worker
from ampd.cost_model import PiecewiseCostModel, Profile, load_profile
from ampd.errors import ConfigError
from ampd.simulator.experiments.deployments import Deployment, Side, feasible_thetas, kv_capacity, longest_context, parse_deployment
from ampd.simulator.experiments.targets import LEVELS, derive_targets
from ampd.simulator.forms import FORMS, setup_for
from ampd.simulator.types import Delays, Group, Setup, TraceSession

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Rules:
    """What one run has of its own. `form` "": the graph's own policy; `keys`: keys of section `policy` laid over the form's, as
    "reorder.window"; `deployment` "": the graph's workers; `targets` "": the graph's.
    """

    form: str = ""
    keys: tuple[tuple[str, Any], ...] = ()
    deployment: str = ""
    targets: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A graph and its profile."""

    graph: Graph
    profile: Profile
    cost: PiecewiseCostModel

    def groups(self, deployment: str = "") -> tuple[Group, ...]:
        """The graph's workers, or those of a deployment in the form `P:<TP=2,DP=3> D:<TP=4,DP=2>`.

        Raises ConfigError when a worker does not hold the model.
        """
        if not deployment:
            return tuple(_group(worker, f"workers.{i}", self.profile) for i, worker in enumerate(self.graph.workers))
        like = next(worker for worker in self.graph.workers if worker.role == "decode")
        capacity = kv_capacity(self.profile.meta) or dict.fromkeys(self.profile.thetas[:1], self.profile.meta.kv_capacity_tokens)
        return parse_deployment(deployment).groups(capacity, like.prefill_chunk, _max_running(like))

    def setup(self, rules: Rules, sessions: Sequence[TraceSession]) -> Setup:
        """Raises ConfigError for a policy, a key, a deployment or targets that do not exist."""
        groups = self.groups(rules.deployment)
        ttft_s, itl_s = self.targets(rules.targets, sessions)
        graph = self.graph
        setup = setup_for(
            check_form(rules.form) or "ampd", groups, ttft_s, itl_s, policy=graph.policy, block_size=graph.model.block_size,
            coordinators=graph.coordinator.replicas, delays=Delays(report_s=graph.state.heartbeat_s),
        )  # fmt: skip
        return replace(setup, policy=overlay(setup.policy, dict(rules.keys)), idle_ttl_s=graph.sessions.idle_ttl_s)

    def targets(self, level: str, sessions: Sequence[TraceSession]) -> tuple[float, float]:
        """TTFT and ITL, seconds: the graph's, or by the rule of `derive_targets`."""
        for known in LEVELS:
            if level == known:
                thetas = list(feasible_thetas(self.profile, longest_context(sessions)))
                found = derive_targets(sessions, self.cost, thetas, known)
                return found.ttft_s, found.itl_s
        if level:
            raise ConfigError(f"--targets {level!r}: choose one of {', '.join(LEVELS)}, or leave it out for the graph's own")
        return self.graph.targets.ttft_s, self.graph.targets.itl_s


def load_scenario(graph: Graph) -> Scenario:
    """Raises ConfigError when the graph has no profile or its engines cannot hold the model, ProfileError for a bad profile."""
    if graph.profile is None:
        raise ConfigError("profile is not set: the simulator takes every time from it; set it to a file of configs/profiles or "
                          "measure one with `ampd profile`")  # fmt: skip
    if any(worker.engine == "sim" and worker.sim.speed != 1.0 for worker in graph.workers):
        raise ConfigError("sim.speed is not 1: virtual time needs no other speed; remove the key")
    profile = load_profile(graph.profile)
    model, foreign = graph.model, graph.foreign_profile
    profile.check(model=model.served_name, theta=profile.thetas[0], block_size=model.block_size, foreign=foreign)
    return Scenario(graph, profile, profile.cost_model(foreign=graph.foreign_profile))


def check_form(name: str) -> str:
    """Raises ConfigError for a policy that does not exist; "" is the graph's own."""
    if name and name not in FORMS:
        near = difflib.get_close_matches(name, FORMS, 1)
        meant = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"--policy {name!r}: there is no such policy; {meant}choose one of {', '.join(FORMS)}")
    return name


def overlay(policy: Policy, keys: Mapping[str, Any]) -> Policy:
    """The policy with these keys set; a key below a section is written with dots. Raises ConfigError."""
    data = policy.model_dump()
    for key, value in keys.items():
        node: Any = data
        *sections, last = key.split(".")
        for section in sections:
            node = node.get(section) if isinstance(node, dict) else None
        if not isinstance(node, dict) or last not in node:
            raise ConfigError(f"policy.{key}: there is no such key; `ampd config show` lists all")
        node[last] = value
    try:
        return Policy.model_validate(data)
    except ValidationError as e:
        raise ConfigError(f"policy.{one_line(e, {})}") from None


def deployment_name(groups: Sequence[Group]) -> str:
    """In the paper's form, `P:<TP=2,DP=3> D:<TP=4,DP=2>`; groups of a role that differ are joined by +."""
    sides = {"P": [g for g in groups if g.role == "prefill"], "D": [g for g in groups if g.role == "decode"]}
    if all(len(side) < 2 for side in sides.values()):
        prefill, decode = ([Side(g.theta, g.replicas) for g in side] for side in sides.values())
        return str(Deployment(prefill[0] if prefill else None, decode[0]))
    named = (f"{role}:{'+'.join(str(Side(g.theta, g.replicas)) for g in side)}" for role, side in sides.items() if side)
    return " ".join(named)


def _group(worker: Worker, where: str, profile: Profile) -> Group:
    return Group(
        worker.role, worker.tensor_parallel, worker.replicas, _kv_tokens(worker, where, profile), worker.prefill_chunk,
        _max_running(worker),
    )  # fmt: skip


def _max_running(worker: Worker) -> int:
    if worker.engine == "sim":
        return worker.sim.max_running
    asked = worker.engine_args.get("max_num_seqs", 256)
    return asked if isinstance(asked, int) else 256


def _kv_tokens(worker: Worker, where: str, profile: Profile) -> int:
    """What the graph says, else what the profile says of such an engine."""
    meta, theta = profile.meta, worker.tensor_parallel
    if worker.engine == "sim" and "kv_tokens" in worker.sim.model_fields_set:
        return worker.sim.kv_tokens
    if worker.kv_cache_gib is not None:
        return worker.kv_cache_gib * GIB // meta.kv_bytes_per_token
    known = kv_capacity(meta)
    if not known:
        return meta.kv_capacity_tokens
    if theta not in known:
        fits = ", ".join(map(str, sorted(known)))
        raise ConfigError(
            f"{where}.tensor_parallel = {theta}: {theta} x {meta.device} cannot hold {meta.model} and KV; use one of {fits}"
        )
    return known[theta]
