"""Whether an estimate lies outside what was measured. Costs without a profile have no range, so they never do.

All raise ProfileError for a theta that the profile does not have.
"""

from __future__ import annotations

from ampd.cost_model.piecewise import PiecewiseCostModel
from ampd.cost_model.scaled import ScaledCostModel
from ampd.policy.types import CostModel, Direction


def extrapolates(cost: CostModel, l_hist: int, l_incr: int, theta: int) -> bool:
    """Whether T_pre of these arguments is outside the profile's measured range."""
    measured = _measured(cost)
    return measured is not None and not measured.knows_t_pre(l_hist, l_incr, theta)


def extrapolates_t_dec(cost: CostModel, batch: int, context: int, theta: int) -> bool:
    """As `extrapolates`, of T_dec. The context of each sequence has a range, too."""
    measured = _measured(cost)
    return measured is not None and not measured.knows_t_dec(batch, context, theta)


def extrapolates_t_mixed(cost: CostModel, batch: int, context: int, chunk: int, theta: int) -> bool:
    """As `extrapolates`, of T_mixed, which a profile without such points only knows for chunk 0."""
    measured = _measured(cost)
    return measured is not None and not measured.knows_t_mixed(batch, context, chunk, theta)


def extrapolates_t_kv(cost: CostModel, tokens: int, theta_src: int, theta_dst: int, direction: Direction) -> bool:
    """As `extrapolates`, of T_kv."""
    measured = _measured(cost)
    return measured is not None and not measured.knows_t_kv(tokens, theta_src, theta_dst, direction)


def _measured(cost: CostModel) -> PiecewiseCostModel | None:
    inner = cost.cost if isinstance(cost, ScaledCostModel) else cost
    return inner if isinstance(inner, PiecewiseCostModel) else None
