"""The search for goodput and for the best deployment, against closed forms and the conditions that keep it honest."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ampd.bench.traces import generate
from ampd.cost_model import load_profile
from ampd.errors import ConfigError
from ampd.simulator.experiments.bound import bound_rate
from ampd.simulator.experiments.deployments import feasible_thetas, parse_deployment
from ampd.simulator.experiments.goodput import STEP, Bench, Goodput, Length, Traffic, Trial, find_goodput
from ampd.simulator.experiments.load import load_of
from ampd.simulator.experiments.race import race
from ampd.simulator.experiments.targets import derive_targets
from ampd.simulator.forms import setup_for
from ampd.simulator.results.attainment import Latency, Measured
from ampd.simulator.results.confidence import Interval
from ampd.simulator.types import Setup, TraceRound, TraceSession
from tests.simulator.sim_core_costs import NO_DELAYS, HandCosts, setup

SERVICE_S = 0.1  # 100 tokens at 1 ms
LENGTH = Length(3000)


def singles(count: int) -> Traffic:
    return Traffic([TraceSession(f"s{i}", (TraceRound(100, 0, 1),)) for i in range(count)], seed=2)


def one_worker(share: float, **fields: object) -> Setup:
    """A worker that prefills one prompt after the other; a round may wait for `share` of its service time."""
    keys = {"name": "local_only", "local_prefill": "exclusive", "reorder": {"name": "fcfs"}}
    return setup(0, 1, policy=keys, ttft_s=(1 + share) * SERVICE_S, **fields)


def md1_load(share: float) -> float:
    """The load at which 90 % of an M/D/1 queue's customers wait for at most `share` of a service: (1 - x) exp(x share) = 0.9."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 - middle) * math.exp(middle * share) > 0.9 else (low, middle)
    return low


@pytest.mark.parametrize("share", [0.8, 0.95])
def test_the_goodput_of_an_md1_queue_is_its_closed_form(share: float) -> None:
    bench = Bench(one_worker(share), HandCosts(), singles(5000), top=1 / SERVICE_S)
    found = find_goodput(bench, 30, LENGTH)
    assert found.rate == pytest.approx(md1_load(share) / SERVICE_S, rel=0.1)
    assert found.trial is not None
    assert found.trial.measured.rounds >= 3000
    assert found.beyond is not None
    assert found.beyond.rate == pytest.approx(found.rate / STEP)
    assert not found.beyond.sustained
    assert found.interval.low < found.rate < found.interval.high


def test_the_search_ends_at_the_same_rung_wherever_it_begins() -> None:
    bench = Bench(one_worker(0.8), HandCosts(), singles(1500), 10.0)
    assert len({find_goodput(bench, start, Length(1000)).rate for start in (20, 45, 90)}) == 1


def test_a_target_that_nothing_meets_has_no_goodput() -> None:
    found = find_goodput(Bench(one_worker(-0.1), HandCosts(), singles(1000), 10.0), 20, Length(500), floor=60)
    assert (found.rate, found.trial) == (0.0, None)


def test_the_pattern_of_arrivals_is_the_same_at_every_rate() -> None:
    slow, fast = singles(100).arrivals(1.0, 50.0), singles(100).arrivals(2.0, 25.0)
    assert [s.arrives_s for s in slow] == pytest.approx([2 * s.arrives_s for s in fast])
    with pytest.raises(ConfigError, match=r"sessions: 100 are too few for 500 s at 1 sessions/s; generate \d+ or more"):
        singles(100).arrivals(1.0, 500.0)


# ---- the conditions


def measured(attainment: float, very_late: float) -> Measured:
    none = Latency(0.0, 0.0, 0.0, 0.0)
    return Measured(10_000, 1000, attainment, attainment, attainment, attainment, 1.0, 1.0, very_late, 0, none, none, {}, {})


@pytest.mark.parametrize(
    ("attainment", "very_late", "steady", "sustained"),
    [(0.9, 0.01, True, True), (0.8999, 0.0, True, False), (0.95, 0.0101, True, False), (0.95, 0.0, False, False)],
)
def test_a_rate_is_sustained_at_the_edge_of_each_condition(
    attainment: float, very_late: float, steady: bool, sustained: bool
) -> None:  # fmt: skip
    assert Trial(1.0, measured(attainment, very_late), Interval(attainment, 0.8, 1.0), steady).sustained is sustained


def test_an_overloaded_run_is_stopped_early_and_is_not_sustained() -> None:
    bench = Bench(one_worker(0.5), HandCosts(), singles(9000), top=20.0)  # twice what the worker can do
    trial = bench.at(0, LENGTH)
    assert not trial.steady
    assert not trial.sustained
    assert bench.rounds < 2500


def test_sessions_that_outlive_the_warm_up_are_not_stationary() -> None:
    # Each session's second round waits 60 s for its tool; a load that promises half of that has too short a warm-up.
    two = (TraceRound(100, 0, 1), TraceRound(200, 100, 1, 60.0))
    traffic = Traffic([TraceSession(f"s{i}", two) for i in range(2000)], seed=2)
    bench = Bench(one_worker(5.0), HandCosts(), traffic, top=10.0)
    assert bench.at(80, Length(500)).steady
    short = replace(bench.load, gap_s=bench.load.gap_s / 2)
    bench.load = short
    assert not bench.at(81, Length(500)).steady


def test_the_interval_is_where_attainment_crosses_by_its_slope() -> None:
    good = Trial(1.0, measured(0.92, 0.0), Interval(0.92, 0.91, 0.93), True)
    bad = Trial(1.1, measured(0.88, 0.0), Interval(0.88, 0.87, 0.89), True)
    interval = Goodput(1.0, good, bad).interval
    assert math.log(interval.high) == pytest.approx(0.01 / (0.04 / math.log(1.1)))
    assert interval.low == pytest.approx(1 / interval.high)
    assert math.isnan(Goodput(0.0, None, bad).interval.low)


# ---- races


def test_a_race_finds_the_fastest_wherever_it_begins() -> None:
    names = {"slow": 0.0014, "fast": 0.001, "middle": 0.0012}
    for start in (2, 30, 70):
        benches = {
            name: Bench(one_worker(0.5 if name == "fast" else 0.0), HandCosts(token_s=token_s), singles(1500), 10.0)
            for name, token_s in names.items()
        }
        winner = race(benches, start, Length(800, 1.0))
        assert winner.name == "fast"
        assert winner.rung in range(1, 150)


# ---- the bound holds


@pytest.mark.parametrize(
    ("form", "deployment"), [("ampd", "P:<TP=4,DP=1> D:<TP=4,DP=1>"), ("vllm", "D:<TP=4,DP=2>"), ("paper", "D:<TP=4,DP=2>")]
)
def test_no_policy_sustains_more_than_the_bound(form: str, deployment: str) -> None:
    profile = load_profile("configs/profiles/llama-3.1-70b-h200.json")
    cost, sessions = profile.cost_model(), generate("toolbench", 4000, 2)
    capacity, load = feasible_thetas(profile, 8192), load_of(sessions)
    targets = derive_targets(sessions, cost, list(capacity), "loose")
    bound = bound_rate(load, cost, capacity, 8, targets.itl_s)
    # The bound knows no TTFT target, so a loose one comes nearest to it; the ladder begins well above.
    made = setup_for(form, parse_deployment(deployment).groups(capacity), 4 * targets.ttft_s, targets.itl_s, delays=NO_DELAYS)
    found = find_goodput(Bench(made, cost, Traffic(sessions, 2), 1.5 * bound), 50, Length(500, 1.0), resolution=4)
    assert 0.2 * bound < found.rate <= bound
