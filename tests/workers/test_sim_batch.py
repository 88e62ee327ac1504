"""The simulated engine's scheduler in its own time: what decodes beside a local prefill, by each of the three rules."""

from __future__ import annotations

import itertools
from collections import defaultdict
from pathlib import Path
from typing import Literal

import pytest
from sim_engines import BLOCK, WORDS, cost, prompt, right

from ampd.workers.engines.base import EngineJob
from ampd.workers.engines.sim_batch import Batch, Rules
from ampd.workers.engines.sim_job import Ask, SimJob
from ampd.workers.engines.sim_kv import BlockPool

TARGET_S = 0.02


class Run:
    """A batch whose steps take exactly their time. `tokens` and `times` by job."""

    def __init__(self, folder: Path, local_prefill: Literal["slack", "chunked", "exclusive"], alone: bool = False) -> None:
        rules = Rules(alone, local_prefill, chunk=512, most_running=256, together=1, theta=1)
        self.batch = Batch(BlockPool(1000), BLOCK, cost(folder), rules)
        self.now = 0.0
        self.tokens: dict[str, list[int]] = defaultdict(list)
        self.times: dict[str, list[float]] = defaultdict(list)
        self._numbers = itertools.count()

    def submit(self, id: str, tokens: list[int], count: int, itl_target_s: float | None = None) -> SimJob:
        job = EngineJob(id=id, kind="decode", token_ids=tokens, itl_target_s=itl_target_s)
        sim = SimJob(job, Ask(count), next(self._numbers), BLOCK, TARGET_S)
        self.batch.submit(sim)
        return sim

    def step(self) -> bool:
        """One step; False when there is nothing to do."""
        for job in self.batch.admit():
            self.batch.ready(job)
        step = self.batch.plan(self.now)
        if step is None:
            return False
        self.now += step.seconds * step.count
        self.batch.finish(step, step.count, self.now, self._sampled, WORDS)
        return True

    def _sampled(self, job: SimJob, tokens: list[int], reason: str | None) -> None:
        self.tokens[job.job.id] += tokens
        self.times[job.job.id] += [self.now] * len(tokens)
        if reason is not None:
            self.batch.leave(job)
            self.batch.pool.drop(job.blocks)

    def gaps(self, id: str) -> list[float]:
        return [b - a for a, b in itertools.pairwise(self.times[id])]

    def itl_s(self, id: str) -> float:
        gaps = self.gaps(id)
        return sum(gaps) / len(gaps)


def beside(folder: Path, local_prefill: Literal["slack", "chunked", "exclusive"]) -> Run:
    """Two rounds of 60 tokens decode, 12 ms a step, while a prompt of 3,000 tokens is prefilled, which takes 0.6 s alone."""
    run = Run(folder, local_prefill)
    prompts = {"one": prompt(64, 1), "two": prompt(64, 2), "long": prompt(3000, 3)}
    for id in ("one", "two"):
        run.submit(id, prompts[id], 60)
    while len(run.tokens["two"]) < 3:
        run.step()
    run.submit("long", prompts["long"], 2)
    while run.step():
        pass
    assert run.batch.pool.used == 0
    assert all(run.tokens[id] == right(tokens, 2 if id == "long" else 60) for id, tokens in prompts.items())
    return run


def test_an_exclusive_local_prefill_pauses_the_batch(tmp_path: Path) -> None:
    run = beside(tmp_path, "exclusive")
    assert max(run.gaps("one")) == pytest.approx(0.613)  # and the step that samples its second token
    assert run.itl_s("one") > TARGET_S


def test_a_chunked_local_prefill_stretches_steps_by_its_chunk(tmp_path: Path) -> None:
    run = beside(tmp_path, "chunked")
    assert max(run.gaps("one")) == pytest.approx(0.012 + 512 * 0.0002)
    assert run.itl_s("one") > TARGET_S


def test_a_slack_bounded_local_prefill_keeps_the_batch_within_its_target(tmp_path: Path) -> None:
    run = beside(tmp_path, "slack")
    assert 0.014 < run.itl_s("one") < TARGET_S
    assert 0.014 < run.itl_s("two") < TARGET_S
    assert max(run.gaps("one")) < 0.04


def test_the_tightest_target_bounds_the_chunks(tmp_path: Path) -> None:
    run = Run(tmp_path, "slack")
    run.submit("strict", prompt(64, 1), 60, itl_target_s=0.015)
    run.submit("lax", prompt(64, 2), 60, itl_target_s=5.0)
    while not run.tokens["lax"]:
        run.step()
    run.submit("long", prompt(3000, 3), 2)
    while run.step():
        pass
    assert run.itl_s("strict") < 0.016


def test_a_prefill_beside_a_batch_that_misses_its_target_still_ends(tmp_path: Path) -> None:
    run = Run(tmp_path, "slack")
    run.submit("hopeless", prompt(64, 1), 300, itl_target_s=0.001)
    run.step()
    run.submit("long", prompt(1000, 2), 2)
    while run.step():
        pass
    assert run.times["long"][0] < run.times["hopeless"][-1]


def test_a_prefill_engine_takes_one_prompt_and_reads_one_ahead(tmp_path: Path) -> None:
    run = Run(tmp_path, "slack", alone=True)
    jobs = [run.submit(str(i), prompt(100, i), 1) for i in range(4)]
    admitted = iter(run.batch.admit())
    run.batch.ready(next(admitted))  # nothing to read: it computes
    second = next(admitted)
    second.phase = "reading"
    run.batch.reading.add(second)
    assert list(admitted) == []
    step = run.batch.plan(0.0)
    assert step is not None
    assert (step.prefills, step.seconds) == ([(jobs[0], 100)], pytest.approx(0.02))
