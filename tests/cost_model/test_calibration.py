"""Factors learnt from tasks: how soon, how far, and what does not move them."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampd.cost_model.calibration import DEFAULT_PACE, Calibration, Factor
from ampd.policy.types import LEAST_FACTOR


def run(
    factor: Factor, ratio: float, seconds: float, every_s: float, began: float = 0.0, noise: float = 0.1, seed: int = 1
) -> float:
    """Tasks of a tenth of a second each, measured at `ratio` times that, give or take. Returns when the last one was."""
    rng, now = Random(seed), began
    while now < began + seconds:
        factor.add(0.1, 0.1 * ratio * math.exp(rng.gauss(0, noise)), now)
        now += every_s
    return now


@pytest.mark.parametrize("every_s", [0.05, 0.5, 2.0, 5.0])
@pytest.mark.parametrize("ratio", [2.0, 0.5])
def test_an_engine_of_another_speed_is_tracked_within_60_s_of_load(ratio: float, every_s: float) -> None:
    """And back again, once it has its old speed."""
    factor = Factor(DEFAULT_PACE)
    now = run(factor, ratio, 60, every_s)
    assert factor.value == pytest.approx(ratio, rel=0.15)
    run(factor, 1.0, 60, every_s, now)
    assert factor.value == pytest.approx(1.0, rel=0.15)


def test_it_is_slow() -> None:
    """What lasts for two seconds is not believed yet, however many tasks say so."""
    factor = Factor(DEFAULT_PACE)
    run(factor, 2.0, 2.5, 0.001)
    assert 1.0 < factor.value < 1.3


def test_without_load_nothing_drifts() -> None:
    factor = Factor(DEFAULT_PACE)
    run(factor, 2.0, 60, 0.5)
    before = factor.value
    assert not factor.add(0.1, 0.1, 10_000.0)
    assert not factor.add(0.1, 0.1, 20_000.0)
    assert factor.value == before, "two tasks in three hours are not enough to say anything"


def test_what_was_right_stays_near_one() -> None:
    factors = [Factor(DEFAULT_PACE) for _ in range(20)]
    for seed, factor in enumerate(factors):
        run(factor, 1.0, 120, 0.2, noise=0.3, seed=seed)
    assert max(abs(factor.value - 1) for factor in factors) < 0.2
    assert sum(factor.value for factor in factors) / 20 == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("predicted_s", [0.1, 100.0])
@pytest.mark.parametrize("wild", [1e-3, 1e3])
@pytest.mark.parametrize("every_s", [0.2, 5.0])
def test_one_wild_task_moves_it_little(wild: float, predicted_s: float, every_s: float) -> None:
    """Be it the longest by far, and be it one of few."""
    calm, shaken = Factor(DEFAULT_PACE), Factor(DEFAULT_PACE)
    for factor in (calm, shaken):
        now = run(factor, 1.5, 60, every_s)
        if factor is shaken:
            factor.add(predicted_s, predicted_s * wild, now)
        run(factor, 1.5, 2.1 if every_s < 1 else 15.0, every_s, now)
    assert shaken.value == pytest.approx(calm.value, rel=0.08)


def test_a_long_task_says_more_than_a_short_one() -> None:
    factor = Factor(DEFAULT_PACE)
    for i in range(120):  # brief tasks have overheads that the profile does not know
        factor.add(0.001, 0.003, 0.5 * i)
        factor.add(1.0, 1.2, 0.5 * i)
        factor.add(1.0, 1.2, 0.5 * i)
    assert factor.value == pytest.approx(1.2, rel=0.02)


def test_a_while_of_brief_tasks_leaves_what_long_ones_taught() -> None:
    factor = Factor(DEFAULT_PACE)
    now = run(factor, 1.2, 60, 0.5)
    before = factor.value
    for i in range(40):
        factor.add(0.002, 0.006, now + 0.5 * i)
    assert factor.value == pytest.approx(before, rel=0.1)


@given(st.lists(st.tuples(st.floats(1e-9, 1e9), st.floats(1e-9, 1e9), st.floats(0, 100)), max_size=200))
def test_a_factor_never_leaves_its_bounds(tasks: list[tuple[float, float, float]]) -> None:
    factor, now = Factor(DEFAULT_PACE), 0.0
    for predicted_s, measured_s, after_s in tasks:
        now += after_s
        factor.add(predicted_s, measured_s, now)
        assert 0.25 - 1e-9 <= factor.value <= 4 + 1e-9


@pytest.mark.parametrize(("ratio", "bound"), [(100.0, 4.0), (0.01, 0.25)])
def test_a_hopeless_engine_is_at_the_bound_that_policies_reckon_with(ratio: float, bound: float) -> None:
    factor = Factor(DEFAULT_PACE)
    run(factor, ratio, 120, 0.5)
    assert factor.value == pytest.approx(bound)
    assert factor.value >= LEAST_FACTOR * (1 - 1e-12)


@pytest.mark.parametrize(("predicted_s", "measured_s"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0), (math.inf, 1.0), (1.0, math.nan)])
def test_times_that_are_none_say_nothing(predicted_s: float, measured_s: float) -> None:
    factor = Factor(DEFAULT_PACE)
    assert not any(factor.add(predicted_s, measured_s, float(now)) for now in range(100))
    assert factor.value == 1.0


def test_functions_are_apart_once_they_are_measured() -> None:
    """Until then T_dec's factor stands for T_mixed's and T_pre's of the same engine; not for T_kv's."""
    made = Calibration()
    for now in range(60):
        made.add("t_dec", 0.1, 0.2, float(now))
    assert made.factor("t_dec") == made.factor("t_mixed") == made.factor("t_pre") == pytest.approx(2.0, rel=0.1)
    assert made.factor("t_kv") == 1.0
    for now in range(60):
        made.add("t_pre", 0.1, 0.08, float(now))
    assert made.factor("t_pre") == pytest.approx(0.8, rel=0.05)
    assert made.factor("t_mixed") == made.factor("t_dec") == pytest.approx(2.0, rel=0.1)
