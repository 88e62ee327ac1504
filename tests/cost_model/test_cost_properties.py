"""What holds for every cost function: no argument lowers a time, nothing jumps, arrays are equal to calls, ranges are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampd.cost_model import PiecewiseCostModel, extrapolates_t_dec, extrapolates_t_kv, extrapolates_t_mixed
from ampd.cost_model.arrays import ArrayCostModel
from ampd.cost_model.default import CoarseCostModel
from ampd.cost_model.functions import DecodeFit, FitError, MixedFit, PrefillFit, Segment, TransferFit
from ampd.cost_model.scaled import ScaledCostModel
from ampd.errors import ProfileError

ERROR = FitError(0.0, 0.0, 1)
rates = st.floats(0, 1e-3)
tokens = st.integers(0, 20_000)
batches = st.integers(0, 300)


@st.composite
def segments(draw: st.DrawFn, most_pair_s: float = 1e-7) -> list[Segment]:
    ends = sorted(draw(st.sets(st.integers(1, 10_000), max_size=5)))
    return [Segment(end, draw(rates), draw(st.floats(0, most_pair_s))) for end in (*ends, None)]


@st.composite
def costs(draw: st.DrawFn) -> PiecewiseCostModel:
    span = (1, 100)
    mixed = MixedFit(1, draw(rates), draw(rates), draw(rates), draw(segments()), span, span, span, ERROR)
    return PiecewiseCostModel(
        [PrefillFit(1, draw(rates), draw(rates), draw(segments()), span, span, ERROR)],
        [DecodeFit(1, draw(rates), draw(rates), draw(segments()), span, span, ERROR)],
        [
            TransferFit(1, 1, "history", draw(rates), draw(segments(0)), span, ERROR, draw(rates), draw(st.integers(1, 64)), by)
            for by in ("tcp", "rdma")
        ],
        [mixed] if draw(st.booleans()) else [],
        transport="rdma",
    )


def least(cost: float) -> float:
    """The same, less the rounding of the sums that it was made from, which are of up to some 100 s."""
    return cost - 1e-11


@given(costs(), tokens, tokens, batches, st.integers(0, 5000))
def test_no_time_is_negative_or_falls_as_an_argument_grows(cost: PiecewiseCostModel, a: int, b: int, batch: int, more: int) -> None:
    assert -1e-11 <= least(cost.t_pre(a, b, 1)) <= min(cost.t_pre(a + more, b, 1), cost.t_pre(a, b + more, 1))
    assert -1e-11 <= least(cost.t_dec(batch, a, 1)) <= min(cost.t_dec(batch + more, a, 1), cost.t_dec(batch, a + more, 1))
    assert -1e-11 <= least(cost.t_kv(a, 1, 1, "history")) <= cost.t_kv(a + more, 1, 1, "history")
    mixed = least(cost.t_mixed(batch + 1, a, b, 1))
    assert -1e-11 <= mixed <= min(cost.t_mixed(batch + 1 + more, a, b, 1), cost.t_mixed(batch + 1, a + more, b, 1))
    assert mixed <= cost.t_mixed(batch + 1, a, b + more, 1)
    assert least(cost.t_dec(batch, a, 1)) <= cost.t_mixed(batch, a, b, 1) or batch == 0


def ends(fit: Any) -> list[int]:
    return [segment.up_to for segment in fit.segments[:-1]]


@given(costs(), tokens)
def test_no_piece_begins_with_a_jump(cost: PiecewiseCostModel, other: int) -> None:
    """Past a breakpoint, one token or sequence more costs no more than the largest rates say."""
    most_s = 1e-3 + 1e-7 * (other + 10_001) + 1e-9
    for x in ends(cost.prefill[1]):
        assert cost.t_pre(other, x + 1, 1) - cost.t_pre(other, x, 1) <= most_s
    for x in ends(cost.decode[1]):
        assert cost.t_dec(x + 1, other, 1) - cost.t_dec(x, other, 1) <= most_s
    for x in ends(cost.mixed[1]) if cost.mixed else []:
        assert cost.t_mixed(7, other, x + 1, 1) - cost.t_mixed(7, other, x, 1) <= most_s
    for x in ends(cost.transfer[1, 1, "history"]):  # perhaps with a block begun
        assert cost.t_kv(x + 1, 1, 1, "history") - cost.t_kv(x, 1, 1, "history") <= 1e-3 + most_s


@given(costs(), st.lists(st.tuples(batches, tokens, tokens), min_size=1, max_size=20), st.sampled_from([None, "tcp", "rdma"]))
def test_arrays_are_equal_to_calls(cost: PiecewiseCostModel, rows: list[tuple[int, int, int]], by: str | None) -> None:
    arrays = ArrayCostModel(cost)
    batch, a, b = np.array(rows).T
    assert arrays.t_pre(a, b, 1).tolist() == [cost.t_pre(x, y, 1) for _, x, y in rows]
    assert arrays.t_dec(batch, a, 1).tolist() == [cost.t_dec(n, x, 1) for n, x, _ in rows]
    assert arrays.t_mixed(batch, a, b, 1).tolist() == [cost.t_mixed(n, x, y, 1) for n, x, y in rows]
    assert arrays.t_kv(a, 1, 1, "history", by).tolist() == [cost.t_kv(x, 1, 1, "history", by) for _, x, _ in rows]


def small(theta: int) -> tuple[PrefillFit, DecodeFit, list[TransferFit], MixedFit]:
    flat = [Segment(None, 0.001 / theta)]
    moves = [
        TransferFit(theta, theta, "history", s, flat, (16, 512), ERROR, transport=by) for s, by in ((0.5, "tcp"), (0.1, "rdma"))
    ]
    return (
        PrefillFit(theta, 0.01, 0.0, flat, (0, 512), (1, 256), ERROR),
        DecodeFit(theta, 0.01, 0.0, flat, (1, 8), (64, 4096), ERROR, sequence=(64, 512)),
        moves,
        MixedFit(theta, 0.02, 0.0, 0.0, flat, (1, 4), (64, 2048), (16, 128), ERROR, sequence=(64, 512)),
    )


def model(*, foreign: bool = False, transport: str | None = None, mixed: bool = True) -> PiecewiseCostModel:
    one, four = small(1), small(4)
    fits = [one[3], four[3]] if mixed else []
    return PiecewiseCostModel([one[0], four[0]], [one[1], four[1]], [*one[2], *four[2]], fits, foreign=foreign, transport=transport)


def test_arrays_broadcast() -> None:
    grid = ArrayCostModel(model()).t_pre(np.arange(3)[:, None], np.arange(4), 1)
    assert grid.shape == (3, 4)
    assert grid[2, 3] == model().t_pre(2, 3, 1)
    assert ArrayCostModel(model()).t_kv(5, 1, 1, "history") == model().t_kv(5, 1, 1, "history")


@pytest.mark.parametrize("kind", [lambda cost: cost, ArrayCostModel])
def test_a_theta_or_way_without_fit_is_an_error_unless_the_nearest_may_answer(kind: Any) -> None:
    strict, foreign = kind(model()), kind(model(foreign=True))
    with pytest.raises(ProfileError, match=r"no T_pre for theta 3, only for \[1, 4\]"):
        strict.t_pre(0, 1, 3)
    with pytest.raises(ProfileError, match=r"no T_dec for theta 3"):
        strict.t_mixed(1, 1, 1, 3)
    with pytest.raises(ProfileError, match=r"no T_kv for theta 1->4 history by tcp, only for 1->1 history by tcp, "):
        strict.t_kv(1, 1, 4, "history", "tcp")
    assert foreign.t_pre(0, 1, 3) == strict.t_pre(0, 1, 4)
    assert foreign.t_dec(1, 1, 2) == strict.t_dec(1, 1, 1)
    assert foreign.t_mixed(1, 1, 1, 8) == strict.t_mixed(1, 1, 1, 4)
    assert foreign.t_kv(9, 8, 4, "history", "tcp") == strict.t_kv(9, 4, 4, "history", "tcp")
    with pytest.raises(ProfileError, match="no T_kv for theta 1->1 increment"):
        foreign.t_kv(1, 1, 1, "increment")
    assert not model(foreign=True).knows_t_pre(0, 1, 3), "the nearest theta was not measured for this one"


@pytest.mark.parametrize(("transport", "seconds"), [(None, 0.5), ("tcp", 0.5), ("rdma", 0.1), ("else", 0.5)])
def test_the_transport_that_is_meant_is_the_profiles_or_else_the_first(transport: str | None, seconds: float) -> None:
    cost = model(transport=transport)
    assert cost.t_kv(1, 1, 1, "history") == seconds + 0.001
    assert cost.t_kv(1, 1, 1, "history", "rdma") == 0.1 + 0.001


def test_a_read_pays_for_each_begun_block() -> None:
    fit = TransferFit(1, 1, "history", 0.5, [Segment(None, 0.001)], (1, 64), ERROR, block_s=0.25, block_size=16)
    cost = PiecewiseCostModel([], [], [fit])
    assert [cost.t_kv(n, 1, 1, "history") for n in (0, 1, 16, 17)] == [0.0, 0.751, 0.766, 1.017]


def test_a_mixed_step_is_the_sum_of_both_where_none_was_measured_and_never_less_than_a_decode_step() -> None:
    plain, measured = model(mixed=False), model()
    assert plain.t_mixed(2, 64, 100, 1) == plain.t_dec(2, 64, 1) + plain.t_pre(0, 100, 1)
    assert measured.t_mixed(2, 64, 100, 1) == pytest.approx(0.02 + 0.1)
    assert measured.t_mixed(500, 64, 1, 1) == measured.t_dec(500, 64, 1), "beyond what the mixed fit can know"
    assert measured.t_mixed(2, 64, 0, 1) == measured.t_dec(2, 64, 1)
    assert measured.t_mixed(0, 0, 100, 1) == measured.t_pre(0, 100, 1)


@pytest.mark.parametrize("speed", [None, 2.0])
def test_every_function_knows_where_it_was_measured(speed: float | None) -> None:
    cost = model() if speed is None else ScaledCostModel(model(), speed)
    assert [extrapolates_t_dec(cost, b, c, 1) for b, c in ((1, 64), (8, 4096), (9, 4096), (1, 513), (2, 127))] == [
        False, False, True, True, True,
    ]  # fmt: skip
    inside = [(1, 64, 16), (4, 2048, 128), (1, 64, 0), (8, 4096, 0)]
    outside = [(1, 64, 15), (4, 2048, 129), (5, 2048, 16), (1, 513, 16), (9, 4096, 0)]
    assert not any(extrapolates_t_mixed(cost, *args, 1) for args in inside)
    assert all(extrapolates_t_mixed(cost, *args, 1) for args in outside)
    assert [extrapolates_t_kv(cost, n, 1, 1, "history") for n in (15, 16, 512, 513)] == [True, False, False, True]
    assert extrapolates_t_mixed(model(mixed=False), 1, 64, 16, 1), "a sum was not measured"
    assert not extrapolates_t_dec(CoarseCostModel(), 10**6, 1, 2)
    with pytest.raises(ProfileError, match="theta 3"):
        extrapolates_t_dec(cost, 1, 64, 3)
