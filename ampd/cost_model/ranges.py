"""Whether an estimate lies within what was measured."""

from __future__ import annotations

from ampd.cost_model.piecewise import PiecewiseCostModel
from ampd.cost_model.scaled import ScaledCostModel
from ampd.policy.types import CostModel


def extrapolates(cost: CostModel, l_hist: int, l_incr: int, theta: int) -> bool:
    """Whether T_pre of these arguments is outside the profile's measured range. Costs without a profile have no range.

    Raises ProfileError for a theta that the profile does not have.
    """
    measured = cost.cost if isinstance(cost, ScaledCostModel) else cost
    return isinstance(measured, PiecewiseCostModel) and not measured.knows_t_pre(l_hist, l_incr, theta)
