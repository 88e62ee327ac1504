"""The simulated engine's scheduler: who holds KV, what the coming step computes, and how long it takes.

As in vLLM, a step computes one token of every running sequence and, beside them, a chunk of the oldest unfinished prefill. No clock
and no tasks here: the engine passes the time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ampd.policy.chunks import ChunkLimits, DecodeProgress, prefill_budget
from ampd.policy.types import CostModel
from ampd.workers.engines.sim_job import SimJob
from ampd.workers.engines.sim_kv import BlockPool

LocalPrefill = Literal["slack", "chunked", "exclusive"]


@dataclass(frozen=True, slots=True)
class Rules:
    """`alone`: a prefill worker's engine, which computes one prompt at a time and holds the KV of one more.

    `chunk` bounds the tokens of prefill in one step of other engines, `most_running` their jobs; up to `together` decode steps
    without any change are made in one go, and their tokens leave together.
    """

    alone: bool
    local_prefill: LocalPrefill
    chunk: int
    most_running: int
    together: int
    theta: int


@dataclass(slots=True)
class Step:
    """`count` equal steps of `seconds` each: one token for each of `decoding`, and `chunk` tokens of `prefill`."""

    seconds: float
    count: int
    decoding: list[SimJob]
    prefill: SimJob | None = None
    chunk: int = 0


class Batch:
    """All jobs of an engine. `ended` is called with a job, its last tokens, and the reason, once it has sampled its last token."""

    def __init__(self, pool: BlockPool, block_size: int, cost: CostModel, rules: Rules) -> None:
        self.pool, self.cost, self.rules, self._block_size = pool, cost, rules, block_size
        self.waiting: list[SimJob] = []
        self.reading: set[SimJob] = set()
        self.prefilling: list[SimJob] = []
        self.decoding: list[SimJob] = []
        self.preemptions = 0

    @property
    def running(self) -> int:
        """Jobs that hold KV."""
        return len(self.reading) + len(self.prefilling) + len(self.decoding)

    def submit(self, job: SimJob) -> None:
        """Wait for KV room, the most urgent first."""
        job.phase = "waiting"
        insort(self.waiting, job, key=lambda j: j.order)

    def admit(self) -> Iterable[SimJob]:
        """Give KV blocks to waiting jobs in their order; each is yielded for its reads to be started, or to be `ready`."""
        while self.waiting and self._may_admit():
            job = self.waiting[0]
            matched = self.pool.match(job.keys())
            need = -(-(job.length + (job.job.kind == "decode")) // self._block_size) - len(matched)
            if need > self.pool.room_after(matched):
                return
            del self.waiting[0]
            self.pool.take(matched)
            job.blocks = [*matched, *self.pool.allocate(need)]
            job.filled = len(matched)
            job.kv = job.filled * self._block_size
            if job.compute_started_at is None:
                job.cached_tokens = job.kv
            yield job

    def _may_admit(self) -> bool:
        if not self.rules.alone:
            return self.running < self.rules.most_running
        # The next task's history is read while this one computes, not while this one reads.
        return self.running < 2 and not self.reading

    def ready(self, job: SimJob) -> None:
        """The job has all the KV that it need not compute."""
        self.reading.discard(job)
        if job.length - job.kv == 1:
            job.phase = "decoding"
            self.decoding.append(job)
        else:
            job.phase = "prefilling"
            self.prefilling.append(job)

    def read(self, job: SimJob, contents: list[bytes], tokens: int) -> None:
        """The KV of the first `tokens` tokens is complete; `contents` are those of the blocks from the first unfilled one on."""
        for content in contents[: tokens // self._block_size - job.filled]:
            self.pool.fill(job.blocks[job.filled], job.key(job.filled), content)
            job.filled += 1
        job.kv = min(tokens, job.length - 1)

    def leave(self, job: SimJob) -> None:
        """Forget a job; its blocks are the caller's to drop."""
        if job.phase == "reading":
            self.reading.discard(job)
        elif job.phase != "ended":
            {"waiting": self.waiting, "prefilling": self.prefilling, "decoding": self.decoding}[job.phase].remove(job)
        job.phase = "ended"

    # ---- steps

    def plan(self, now: float) -> Step | None:
        """The coming step; None when there is nothing to compute."""
        prefill = self.prefilling[0] if self.prefilling else None
        if prefill is not None and (self.rules.alone or self.rules.local_prefill == "exclusive" or not self.decoding):
            left = prefill.length - prefill.kv
            whole = self.rules.alone or self.rules.local_prefill == "exclusive"
            chunk = left if whole else min(left, self.rules.chunk)
            prefill.computing()
            return Step(self.cost.t_pre(prefill.kv, chunk, self.rules.theta), 1, [], prefill, chunk)
        while self.decoding:
            count = 1 if prefill is not None else self._steps_without_change()
            if self._grow(count):
                return self._mixed(prefill, count, now)
        return None

    def _steps_without_change(self) -> int:
        if self.rules.together == 1 or any(job.generated == 0 for job in self.decoding):
            return 1
        return max(1, min(self.rules.together, min(job.ask.most - job.generated for job in self.decoding)))

    def _mixed(self, prefill: SimJob | None, count: int, now: float) -> Step:
        jobs, theta = list(self.decoding), self.rules.theta
        context = sum([job.kv for job in jobs])
        chunk = 0
        if prefill is not None:
            prefill.computing()
            chunk = self.rules.chunk
            if self.rules.local_prefill == "slack":
                running = [DecodeProgress(job.itl_target_s, job.first_at, job.generated - 1) for job in jobs if job.generated]
                done = prefill.kv
                chunk = prefill_budget(
                    now,
                    running,
                    lambda tokens: mixed_step_s(self.cost, len(jobs), context, done, tokens, theta),
                    ChunkLimits(max_tokens=self.rules.chunk),
                )
            chunk = min(chunk, prefill.length - prefill.kv)
        for job in jobs:
            job.computing()
        seconds = mixed_step_s(self.cost, len(jobs), context, prefill.kv if prefill else 0, chunk, theta)
        return Step(seconds, count, jobs, prefill, chunk)

    def _grow(self, count: int) -> bool:
        """Give every running sequence blocks for `count` more tokens; else preempt the last one, and say False."""
        for job in self.decoding:
            more = -(-(job.kv + count) // self._block_size) - len(job.blocks)
            if more <= 0:
                continue
            if more > self.pool.room:
                self._preempt(max(self.decoding, key=lambda j: j.order))
                return False
            job.blocks += self.pool.allocate(more)
        return True

    def _preempt(self, job: SimJob) -> None:
        """Take a job's KV away; it computes it again, before any job that has not begun."""
        self.preemptions += 1
        self.leave(job)
        self.pool.drop(job.blocks)
        job.blocks, job.author, job.filled = [], None, 0
        job.phase = "waiting"
        self.waiting.insert(0, job)

    def finish(
        self, step: Step, count: int, now: float, sampled: Callable[[SimJob, list[int], str | None], None], words: Sequence[int]
    ) -> None:
        """`count` of the step's steps are over. `sampled` is told each job's new tokens, and why they are its last if they are."""
        for job in step.decoding:
            if job.phase == "decoding":
                tokens, reason = self._decode(job, count, words)
                job.first_at = job.first_at or now
                sampled(job, tokens, reason)
        job_ = step.prefill
        if job_ is not None and job_.phase == "prefilling":
            self._compute(job_, step.chunk)
            if job_.kv == job_.length:
                token, reason = job_.sample(words)
                job_.first_at = job_.first_at or now
                if reason is None:
                    self.prefilling.remove(job_)
                    job_.phase = "decoding"
                    self.decoding.append(job_)
                sampled(job_, [token], reason)

    def _decode(self, job: SimJob, count: int, words: Sequence[int]) -> tuple[list[int], str | None]:
        tokens: list[int] = []
        for _ in range(count):
            last = job.chain.tokens[job.kv]
            self._compute(job, 1)
            if job.author is not None:
                if job.kv % self._block_size:
                    job.author.read(last)
                else:
                    job.author.restart(job.content_before(job.filled))
            token, reason = job.sample(words)
            tokens.append(token)
            if reason is not None:
                return tokens, reason
        return tokens, None

    def _compute(self, job: SimJob, tokens: int) -> None:
        job.kv += tokens
        while job.filled < job.kv // self._block_size:
            content = job.chain.content(job.filled, job.content_before(job.filled))
            self.pool.fill(job.blocks[job.filled], job.key(job.filled), content)
            job.filled += 1


def mixed_step_s(cost: CostModel, batch: int, context: int, done: int, chunk: int, theta: int) -> float:
    """Seconds of a step that decodes `batch` sequences and prefills `chunk` tokens after `done` of the same prompt."""
    if chunk <= 0:
        return cost.t_dec(batch, context, theta)
    attention_s = max(0.0, cost.t_pre(done, chunk, theta) - cost.t_pre(0, chunk, theta))
    return cost.t_mixed(batch, context, chunk, theta) + attention_s
