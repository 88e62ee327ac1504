"""What policies rely on in a cost model, for each one that ships."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampd.cost_model import CoarseCostModel, extrapolates_t_mixed, load_profile
from ampd.policy.types import CostModel

PROFILES = sorted((Path(__file__).parents[2] / "configs" / "profiles").glob("*.json"))


def models() -> list[tuple[str, CostModel, int]]:
    """(name, model, a theta that it knows)"""
    shipped = [(p.stem, load_profile(p)) for p in PROFILES]
    return [("coarse", CoarseCostModel(), 1), *((name, p.cost_model(), p.t_dec[0].theta) for name, p in shipped)]


@pytest.mark.parametrize(("name", "cost", "theta"), models(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_step_is_linear_in_its_context_and_rises_with_its_batch(name: str, cost: CostModel, theta: int) -> None:
    assert len(PROFILES) >= 2
    for batch in (1, 7, 64, 300):
        flat, high = cost.t_dec(batch, 0, theta), cost.t_dec(batch, 1_000_000, theta)
        for context in (1, 5000, 333_333, 3_000_000):
            assert cost.t_dec(batch, context, theta) == pytest.approx(flat + (high - flat) * context / 1_000_000)
        assert flat <= cost.t_dec(batch + 1, 0, theta)


@pytest.mark.parametrize(("name", "cost", "theta"), models(), ids=lambda value: value if isinstance(value, str) else "")
def test_a_mixed_step_takes_longer_than_each_part_and_no_longer_than_both(name: str, cost: CostModel, theta: int) -> None:
    for batch, context, chunk in ((1, 500, 64), (8, 30_000, 512), (64, 200_000, 2048)):
        decode, prefill = cost.t_dec(batch, context, theta), cost.t_pre(0, chunk, theta)
        mixed = cost.t_mixed(batch, context, chunk, theta)
        # Fits of their own: within what was measured, all are within a few percent of it.
        assert max(decode, 0.95 * prefill) < mixed
        assert mixed <= decode + prefill + 1e-12 or extrapolates_t_mixed(cost, batch, context, chunk, theta)
        assert cost.t_mixed(batch, context, 0, theta) == pytest.approx(decode)
