"""Attainment and latencies of outcomes made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import t as student_t
from sim_outcomes import Made, outcome, sessions

from ampd.simulator.results.attainment import Window, attainment_interval, measure, warm_up_s
from ampd.simulator.results.confidence import bootstrap_share, student, t_quantile

TTFT, ITL = 1.0, 0.02


def test_rounds_and_sessions_by_both_rules() -> None:
    done = outcome([
        Made(0, 1, 0.0, 0.5),
        Made(0, 2, 5.0, 0.5, itl=0.01, itl_p95=0.03),  # misses by the p95 rule alone
        Made(1, 1, 1.0, 1.0, itl=None),  # just in time, one token
        Made(2, 1, 2.0, 1.1),  # late
        Made(2, 2, 6.0, 0.2, itl=0.021),  # slow
    ])  # fmt: skip
    seen = measure(done, sessions(2, 1, 2), TTFT, ITL)
    assert (seen.rounds, seen.sessions, seen.overdue) == (5, 3, 0)
    assert seen.attainment == pytest.approx(3 / 5)
    assert seen.attainment_p95_itl == pytest.approx(2 / 5)
    assert seen.session_attainment == pytest.approx(2 / 3)
    assert seen.session_attainment_p95_itl == pytest.approx(1 / 3)
    assert (seen.ttft_share, seen.itl_share) == (pytest.approx(4 / 5), pytest.approx(4 / 5))


def test_the_warm_up_is_cut_by_arrival_and_sessions_by_their_end() -> None:
    done = outcome(
        [Made(0, 1, 0.0, 9.0), Made(0, 2, 20.0, 0.1), Made(1, 1, 12.0, 0.1), Made(2, 1, 31.0, 9.0), Made(3, 1, 3.0, 0.1)]
    )
    seen = measure(done, sessions(2, 1, 1, 1), TTFT, ITL, Window(10.0, 30.0))
    assert (seen.rounds, seen.attainment) == (2, 1.0)
    # Session 0 ended within the window and had missed a round before it; session 2 ended after it, session 3
    # before it.
    assert (seen.sessions, seen.session_attainment) == (2, 0.5)


def test_unfinished_rounds_count_once_they_can_no_longer_be_attained() -> None:
    # Ten gaps of at most 20 ms: a round is surely missed 1.2 s after its arrival, and starved after 10.2 s.
    waiting = [(98.81, 1, 1), (98.79, 2, 1), (89.79, 3, 1), (5.0, 4, 1), (89.81, 5, 1)]
    seen = measure(outcome([Made(0, 1, 90.0, 0.1)], waiting), sessions(*[1] * 6), TTFT, ITL, Window(50.0, 100.0))
    assert (seen.rounds, seen.overdue) == (4, 3)
    assert (seen.attainment, seen.very_late) == (0.25, 0.25)
    assert (seen.sessions, seen.session_attainment) == (4, 0.25)


def test_starved_rounds_are_those_later_than_ten_targets() -> None:
    done = outcome([Made(i, 1, 0.0, late) for i, late in enumerate((0.1, 9.9, 10.0, 10.1))])
    seen = measure(done, sessions(1, 1, 1, 1), TTFT, ITL)
    assert seen.very_late == 0.25


def test_latencies_are_those_of_numpy_and_paths_are_shares() -> None:
    ttfts = np.linspace(0.1, 2.0, 57)
    paths = ["local"] * 19 + ["deflected"] * 38
    done = outcome([Made(i, 1, 0.0, ttft, path=path) for i, (ttft, path) in enumerate(zip(ttfts, paths, strict=True))])
    seen = measure(done, sessions(*[1] * 57), TTFT, ITL)
    assert (seen.ttft.mean_s, seen.ttft.p50_s) == (pytest.approx(ttfts.mean()), pytest.approx(np.median(ttfts)))
    assert (seen.ttft.p95_s, seen.ttft.p99_s) == tuple(pytest.approx(np.quantile(ttfts, q)) for q in (0.95, 0.99))
    assert seen.shares == {"local": pytest.approx(1 / 3), "remote": 0.0, "deflected": pytest.approx(2 / 3)}


def test_the_parts_of_ttft_sum_to_it_even_when_moving_overlapped_with_waiting() -> None:
    done = outcome([Made(0, 1, 0.0, 1.0, queued=0.2, moved=0.3), Made(1, 1, 0.0, 1.0, queued=0.8, moved=0.6)])
    seen = measure(done, sessions(1, 1), TTFT, ITL)
    assert seen.parts_s == {"queue": pytest.approx(0.5), "transfer": pytest.approx(0.25), "compute": pytest.approx(0.25)}
    assert sum(seen.parts_s.values()) == pytest.approx(seen.ttft.mean_s)


def test_nothing_counted_is_unknown_not_zero() -> None:
    seen = measure(outcome([]), sessions(1), TTFT, ITL)
    assert math.isnan(seen.attainment)
    assert math.isnan(seen.ttft.p99_s)
    row = seen.row()
    assert (row["rounds"], row["attainment"], row["ttft_p99_s"], row["share_local"]) == (0, None, None, None)
    assert math.isnan(attainment_interval(outcome([]), sessions(1), TTFT, ITL).mean)


def test_the_warm_up_is_in_lifetimes_of_whole_sessions() -> None:
    done = outcome([Made(0, 1, 0.0, 1.0, itl=None), Made(0, 2, 9.0, 1.0, itl=None), Made(1, 1, 1.0, 1.0, itl=None)])
    assert warm_up_s(done, sessions(2, 2)) == pytest.approx(2.5 * 10.0)
    assert warm_up_s(outcome([]), sessions(2)) == 0.0


@pytest.mark.parametrize("degrees", [1, 2, 5, 10, 11, 20, 100, 10_000])
def test_quantiles_of_student_are_those_of_scipy(degrees: int) -> None:
    assert t_quantile(degrees) == pytest.approx(student_t.ppf(0.975, degrees), abs=2e-4)


def test_the_interval_between_seeds() -> None:
    values = (0.9, 0.92, 0.97)
    seen = student((*values, math.nan))
    low, high = student_t.interval(0.95, 2, np.mean(values), np.std(values, ddof=1) / math.sqrt(3))
    assert seen.mean == pytest.approx(np.mean(values))
    assert (seen.low, seen.high) == (pytest.approx(low, abs=1e-5), pytest.approx(high, abs=1e-5))
    assert student(values, 0.0, 1.0).high == 1.0
    assert math.isnan(student([0.5]).low)


def test_the_bootstrap_covers_the_true_share_nineteen_times_in_twenty() -> None:
    # Sessions of ten rounds that are all hit or all missed: rounds taken as independent would cover a third as wide.
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(200):
        seen = bootstrap_share(10 * rng.binomial(1, 0.8, 60), np.full(60, 10), seed=trial, draws=300)
        covered += seen.low <= 0.8 <= seen.high
    assert 180 <= covered <= 199


def test_the_interval_of_a_run_counts_overdue_rounds_as_misses() -> None:
    done = outcome([Made(i, 1, 0.0, 0.1) for i in range(30)], [(0.0, i, 1) for i in range(30, 60)])
    seen = attainment_interval(done, sessions(*[1] * 60), TTFT, ITL)
    assert seen.mean == 0.5
    assert 0.3 < seen.low < 0.45
    assert 0.55 < seen.high < 0.7
