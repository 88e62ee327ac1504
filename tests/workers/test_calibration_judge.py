"""Which of a worker's tasks are judged, and by what, told step by step."""

from __future__ import annotations

from pathlib import Path

import pytest
from sim_engines import cost

from ampd.cost_model.calibration import CostFunction
from ampd.workers.engines.base import EngineLoad, KvFacts
from ampd.workers.judge import JobWatch, Judge, Predictor


class Bench:
    """A judge on a clock of the test's own, and what it judges."""

    def __init__(self, folder: Path, packs: bool = False) -> None:
        self.now, self.context = 1000.0, 0
        self.judged: list[tuple[CostFunction, float, float]] = []
        self.judge = Judge(
            Predictor(cost(folder), 1, 1),
            lambda: EngineLoad(context=self.context),
            told=lambda *judged: self.judged.append(judged),
            clock=lambda: self.now,
            packs=packs,
        )

    def round(self, tokens: int = 100, computes: bool = True) -> JobWatch:
        """A round that has gone to the engine."""
        watch = self.judge.watch("increment", tokens, computes)
        watch.begins()
        return watch

    def step(self, seconds: float, *rounds: JobWatch) -> None:
        """An engine step from which each of these rounds has a token."""
        self.now += seconds
        for watch in rounds:
            watch.tokens_left(seconds, 1)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """A prefill costs 0.2 ms a token, a decode step 10 ms and 1 ms a sequence, a transfer 20 ms and 0.1 ms a token."""
    return Bench(tmp_path)


def test_a_prefill_alone_is_t_pre_from_its_first_step_on(bench: Bench) -> None:
    watch = bench.round(1000)
    bench.now += 1.0
    watch.first_token()
    watch.over(KvFacts(cached_tokens=400, compute_started_at=1000.7))
    assert bench.judged == [("t_pre", pytest.approx(0.12), pytest.approx(0.3))]


def test_gaps_beside_a_prefill_are_not_counted(bench: Bench) -> None:
    first = bench.round(computes=False)
    first.first_token()
    for _ in range(3):
        bench.step(0.02, first)
    second = bench.round(1000)
    bench.step(0.3, first)
    bench.step(0.3, first)
    second.first_token()
    bench.step(0.3, first)  # the prefill was there when it began
    bench.step(0.04, first, second)
    second.over(KvFacts())
    first.over(KvFacts())
    # One gap of the second's, of a batch of two; four of the first's, which looked at the batch when it was alone.
    assert bench.judged == [
        ("t_dec", pytest.approx(0.012), pytest.approx(0.04)),
        ("t_dec", pytest.approx(4 * 0.011), pytest.approx(3 * 0.02 + 0.04)),
    ]


@pytest.mark.parametrize(("steps", "judged"), [(4, False), (10, True)])
def test_a_prefill_beside_a_batch_is_judged_if_it_takes_many_steps(bench: Bench, steps: int, judged: bool) -> None:
    batch = [bench.round(computes=False) for _ in range(2)]
    for watch in batch:
        watch.first_token()
    local = bench.round(1000)
    for _ in range(steps):
        bench.step(0.05, *batch)
    local.first_token()
    local.over(KvFacts())
    expected = [("t_mixed", pytest.approx(10 * 0.012 + 0.2), pytest.approx(0.5))]
    assert bench.judged == (expected if judged else [])


def test_a_read_that_shares_the_link_is_not_judged(bench: Bench) -> None:
    reads = [(1000.0, 1000.1), (1000.05, 1000.3), (1000.3, 1000.4)]
    for began, ended in reads:
        watch = bench.round(computes=False)
        watch.over(KvFacts(read_tokens=800, read_s=ended - began, read_started_at=began, read_ended_at=ended))
    assert bench.judged == [("t_kv", pytest.approx(0.1), pytest.approx(0.1))] * 2


@pytest.mark.parametrize("when", ["before", "meanwhile", "after"])
def test_a_read_while_a_prefill_runs_is_not_judged(bench: Bench, when: str) -> None:
    if when == "before":
        bench.round()
    watch = bench.round(computes=False)
    if when == "meanwhile":
        bench.round().ends()
    watch.first_token()
    if when == "after":
        bench.round()
    watch.over(KvFacts(read_tokens=800, read_s=0.1, read_started_at=1000.0, read_ended_at=1000.1))
    assert bench.judged == ([("t_kv", pytest.approx(0.1), pytest.approx(0.1))] if when == "after" else [])


@pytest.mark.parametrize(("tokens", "judged"), [(200, False), (800, True)])
def test_a_read_is_judged_if_a_step_is_short_beside_it(bench: Bench, tokens: int, judged: bool) -> None:
    """A step of one takes 11 ms, these reads 40 and 100 ms."""
    bench.round(computes=False).first_token()
    watch = bench.round(computes=False)
    watch.over(KvFacts(read_tokens=tokens, read_s=0.1, read_started_at=1000.0, read_ended_at=1000.1))
    assert [fn for fn, _, _ in bench.judged] == (["t_kv"] if judged else [])


def test_what_ends_before_its_time_is_not_judged_and_leaves_nothing_behind(bench: Bench) -> None:
    queued = bench.judge.watch("increment", 100, True)
    queued.ends()
    for watch in (bench.round(), bench.round(computes=False)):
        watch.ends()
        watch.ends()
    decoding = bench.round()
    decoding.first_token()
    bench.step(0.02, decoding)
    decoding.ends()
    assert (bench.judge.decoding, bench.judge.prefilling) == (0, 0)
    assert bench.judged == []


@pytest.mark.parametrize(("packs", "judged"), [(True, ["t_pre"]), (False, ["t_pre", "t_pre", "t_pre"])])
def test_prefills_that_share_steps_are_not_told_apart(tmp_path: Path, packs: bool, judged: list[str]) -> None:
    """One alone, then two at once, of which an engine that computes one after the other says how long each took."""
    bench = Bench(tmp_path, packs)
    alone = bench.round(1000)
    bench.now += 0.3
    alone.first_token()
    alone.over(KvFacts())
    both = [bench.round(1000), bench.round(1000)]
    for watch in both:
        bench.now += 0.3
        watch.ends()
        watch.over(KvFacts())
    assert [fn for fn, _, _ in bench.judged] == judged
