"""Generated sessions: their means are the paper's, their rounds fit together, and the same seed gives the same sessions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from ampd.bench.traces import SHAPES, Reading, arriving, endless, from_trace, gamma, generate, poisson, scaled, sustained, truncated
from ampd.errors import ConfigError
from ampd.simulator.types import TraceRound, TraceSession

MANY = 10_000

# rounds, new prompt tokens, output tokens of a session: AMPD, section 7.1, where it gives them.
PAPER = {"toolbench": (3.96, 703, None), "gaia": (11.32, 6161, 528), "hotpotqa": (4, None, None), "dureader": (4, 3081, None)}


def near(values: Sequence[float], mean: float) -> bool:
    """Within 4 standard errors, rounding to tokens and milliseconds included."""
    data = np.array(values, dtype=float)
    return abs(data.mean() - mean) <= 4 * data.std(ddof=1) / math.sqrt(len(data)) + 1e-3 * mean


@pytest.mark.parametrize("reading", ["total", "round"])
@pytest.mark.parametrize("name", PAPER)
def test_means_are_the_papers(name: str, reading: Reading) -> None:
    sessions = generate(name, MANY, 3, reading=reading)
    rounds, prefill, decode = PAPER[name]
    counts = [len(session.rounds) for session in sessions]
    assert near(counts, rounds)
    factor = rounds if reading == "round" else 1
    shape = SHAPES[name]
    new = [sum(r.prompt - r.history for r in session.rounds) for session in sessions]
    output = [sum(r.output for r in session.rounds) for session in sessions]
    assert near(new, prefill * factor if prefill else shape.prefill.mean)
    assert near(output, decode * factor if decode else shape.decode.mean)


@pytest.mark.parametrize("name", PAPER)
def test_a_rounds_history_is_all_before_it(name: str) -> None:
    for session in generate(name, 200, 5):
        assert session.rounds[0].history == 0
        assert session.rounds[0].gap_s == 0.0
        assert session.rounds[0].tool == ""
        assert len(session.rounds) >= SHAPES[name].least_rounds
        for before, after in zip(session.rounds, session.rounds[1:], strict=False):
            assert after.history == before.prompt + before.output
            assert after.prompt > after.history
            assert after.output >= 1
            assert after.gap_s > 0
            assert after.tool in {tool.name for tool in SHAPES[name].tools}


@pytest.mark.parametrize("name", PAPER)
def test_each_tool_takes_its_stated_time(name: str) -> None:
    gaps: dict[str, list[float]] = {}
    for session in generate(name, MANY, 7):
        for r in session.rounds[1:]:
            gaps.setdefault(r.tool, []).append(r.gap_s)
    everything = sum(map(len, gaps.values()))
    for tool in SHAPES[name].tools:
        assert near(gaps[tool.name], tool.mean_s)
        assert len(gaps[tool.name]) / everything == pytest.approx(tool.share, abs=0.01)
        assert np.log(np.maximum(gaps[tool.name], 1e-3)).std() == pytest.approx(tool.sigma, rel=0.05)


def test_seeds_decide_everything() -> None:
    assert generate("gaia", 50, 1) == generate("gaia", 50, 1)
    assert generate("gaia", 50, 1) != generate("gaia", 50, 2)
    assert generate("gaia", 200, 1)[:50] == generate("gaia", 50, 1)
    assert len({session.name for session in generate("gaia", 200, 1)}) == 200


def test_sessions_arrive_at_one_a_second_or_in_bursts() -> None:
    usual = np.diff([s.arrives_s for s in generate("hotpotqa", MANY, 1)])
    bursty = np.diff([s.arrives_s for s in generate("hotpotqa", MANY, 1, bursty_cv=3.0)])
    assert near(usual, 1.0)
    assert near(bursty, 1.0)
    assert usual.std() == pytest.approx(1.0, rel=0.1)
    assert bursty.std() == pytest.approx(3.0, rel=0.15)
    assert [s.rounds for s in generate("gaia", 9, 1)] == [s.rounds for s in generate("gaia", 9, 1, bursty_cv=3.0)]


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0, 4.0])
def test_gamma_arrivals_have_their_rate_and_burstiness(cv: float) -> None:
    between = np.diff(gamma(5.0, cv, 40_000, 2), prepend=0.0)
    assert near(between, 0.2)
    assert between.std() / between.mean() == pytest.approx(cv, rel=0.1)


def test_poisson_is_gamma_of_one_and_scales_with_the_rate() -> None:
    assert np.array_equal(poisson(2.0, 100, 4), gamma(2.0, 1.0, 100, 4))
    np.testing.assert_allclose(poisson(8.0, 100, 4), poisson(2.0, 100, 4) / 4)
    np.testing.assert_allclose(scaled(poisson(2.0, 100, 4), 4.0), poisson(8.0, 100, 4))
    assert not np.array_equal(poisson(2.0, 100, 4), poisson(2.0, 100, 5))


def session(name: str, at: float = 0.0) -> TraceSession:
    return TraceSession(name, (TraceRound(10, 0, 5), TraceRound(30, 15, 5), TraceRound(60, 35, 5)), at)


def test_recorded_arrivals_start_at_nought_and_go_on_in_order() -> None:
    times = from_trace([session("a", 7.0), session("b", 5.0)])
    assert times.tolist() == [2.0, 0.0]
    assert [(s.name, s.arrives_s) for s in arriving([session("a"), session("b")], times)] == [("b", 0.0), ("a", 2.0)]
    assert from_trace([]).tolist() == []
    with pytest.raises(ConfigError, match="times: 1 arrival times for 2 sessions"):
        arriving([session("a"), session("b")], times[:1])


def test_a_list_repeats_with_new_names_each_session_equally_often() -> None:
    source = endless([session("a"), session("b"), session("c")], 1)
    names = [next(source).name for _ in range(9)]
    assert sorted(names[:3]) == ["a", "b", "c"]
    assert sorted(names[3:6]) == ["a#2", "b#2", "c#2"]
    assert sorted(names[6:]) == ["a#3", "b#3", "c#3"]
    with pytest.raises(ConfigError, match="sessions: none to repeat"):
        next(endless([], 1))


def test_a_load_lasts_as_long_as_asked_and_longer_ones_begin_alike() -> None:
    short = sustained([session("a"), session("b")], 3.0, 1000.0, 1)
    assert len(short) == pytest.approx(3000, abs=4 * math.sqrt(3000))
    assert all(s.arrives_s < 1000.0 for s in short)
    assert short[-1].arrives_s > 990.0
    assert len({s.name for s in short}) == len(short)
    assert sustained([session("a"), session("b")], 3.0, 2000.0, 1)[: len(short)] == short
    bursty = sustained([session("a")], 3.0, 1000.0, 1, cv=4.0)
    assert bursty[-1].arrives_s > 950.0


def test_sessions_end_where_their_context_is_full() -> None:
    cut = truncated([session("a")], 40)
    assert [r.prompt for r in cut[0].rounds] == [10, 30]
    assert truncated([session("a")], 65) == [session("a")]
    assert truncated([session("a")], 14) == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: generate("gaja", 1, 1), "trace: no generator 'gaja'; choose one of toolbench, gaia, hotpotqa, dureader"),
        (lambda: generate("gaia", 0, 1), "sessions: 0"),
        (lambda: generate("gaia", 1, 1, reading="turn"), "reading: 'turn' is unknown"),
        (lambda: generate("gaia", 1, 1, bursty_cv=0.0), "cv: 0.0 is not above 0"),
        (lambda: poisson(0.0, 1, 1), "rate: 0.0 is not above 0"),
        (lambda: poisson(math.nan, 1, 1), "rate: nan"),
        (lambda: scaled(poisson(1.0, 1, 1), -1.0), "factor: -1.0"),
        (lambda: sustained([session("a")], 0.0, 10.0, 1), "rate: 0.0"),
        (lambda: sustained([session("a")], 1.0, 0.0, 1), "duration_s: 0.0"),
    ],
)
def test_impossible_wishes_are_refused(call: object, words: str) -> None:
    assert callable(call)
    with pytest.raises(ConfigError) as refused:
        call()
    assert words in str(refused.value)
