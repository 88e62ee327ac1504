"""The simulated engine's scheduler: who holds KV, what the coming step computes, and how long it takes.

As in vLLM, a step computes one token of every running sequence and, beside them, a chunk of the oldest unfinished prefill; further
ones join if they fit whole. No clock and no tasks here: the engine passes the time.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ampd.policy.chunks import AnswerLengths, ChunkLimits, DecodeProgress, prefill_budget
from ampd.policy.types import CostModel
from ampd.workers.engines.sim_job import SimJob
from ampd.workers.engines.sim_kv import BlockPool

LocalPrefill = Literal["slack", "chunked", "exclusive"]
Sampled = Callable[[SimJob, list[int], str | None], None]


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
    """`count` equal steps of `seconds` each: one token for each of `decoding`, and so many tokens of each of `prefills`."""

    seconds: float
    count: int
    decoding: list[SimJob]
    prefills: list[tuple[SimJob, int]]

    @property
    def is_void(self) -> bool:
        """Whether nothing of it is wanted any more."""
        return not self.decoding and all(job.phase != "prefilling" for job, _ in self.prefills)


class Batch:
    """All jobs of an engine. `ended` is called with a job, its last tokens, and the reason, once it has sampled its last token."""

    def __init__(self, pool: BlockPool, block_size: int, cost: CostModel, rules: Rules) -> None:
        self.pool, self.cost, self.rules, self._block_size = pool, cost, rules, block_size
        self.waiting: list[SimJob] = []
        self.reading: set[SimJob] = set()
        self.prefilling: list[SimJob] = []
        self.decoding: list[SimJob] = []
        self.preemptions = 0
        self._answers = AnswerLengths()

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
        if self.prefilling and (self.rules.alone or self.rules.local_prefill == "exclusive" or not self.decoding):
            whole = self.rules.alone or self.rules.local_prefill == "exclusive"
            first = self.prefilling[0]
            prefills = [(first, first.length - first.kv)] if whole else self._together(self.rules.chunk)
            return self._step([], prefills, 1)
        while self.decoding:
            count = 1 if self.prefilling else self._steps_without_change()
            if self._grow(count):
                jobs = list(self.decoding)
                return self._step(jobs, self._together(self._budget(jobs, now)) if self.prefilling else [], count)
        return None

    def _steps_without_change(self) -> int:
        if self.rules.together == 1 or any(job.generated == 0 for job in self.decoding):
            return 1
        return max(1, min(self.rules.together, min(job.ask.most - job.generated for job in self.decoding)))

    def _step(self, decoding: list[SimJob], prefills: list[tuple[SimJob, int]], count: int) -> Step:
        for job in (*decoding, *(job for job, _ in prefills)):
            job.computing()
        context = sum([job.kv for job in decoding])
        pieces = [(job.kv, tokens) for job, tokens in prefills]
        return Step(mixed_step_s(self.cost, len(decoding), context, pieces, self.rules.theta), count, decoding, prefills)

    def _together(self, budget: int) -> list[tuple[SimJob, int]]:
        """The oldest prefill's share of the budget, and those behind it, up to the first that does not fit whole."""
        first, *others = self.prefilling
        chunk = min(budget, first.length - first.kv)
        prefills, left = [(first, chunk)], budget - chunk
        for job in others:
            left -= job.length - job.kv
            if left < 0:
                break
            prefills.append((job, job.length - job.kv))
        return prefills

    def _budget(self, jobs: Sequence[SimJob], now: float) -> int:
        """Tokens of prefill beside these, which decode."""
        if self.rules.local_prefill != "slack":
            return self.rules.chunk
        running = [
            DecodeProgress(job.itl_target_s, job.first_at, job.generated - 1, self._answers.left(job.generated, job.ask.most))
            for job in jobs
            if job.generated
        ]
        context, done = sum([job.kv for job in jobs]), self.prefilling[0].kv
        return prefill_budget(
            now,
            running,
            lambda tokens: mixed_step_s(self.cost, len(jobs), context, [(done, tokens)], self.rules.theta),
            ChunkLimits(max_tokens=self.rules.chunk),
        )

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

    def finish(self, step: Step, count: int, now: float, sampled: Sampled, words: Sequence[int]) -> None:
        """`count` of the step's steps are over. `sampled` is told each job's new tokens, and why they are its last if they are."""
        for job in step.decoding:
            if job.phase == "decoding":
                tokens, reason = self._decode(job, count, words)
                job.first_at = job.first_at or now
                if reason is not None:
                    self._answers.ended(job.generated)
                sampled(job, tokens, reason)
        for job, chunk in step.prefills:
            if job.phase == "prefilling":
                self._compute(job, chunk)
                if job.kv == job.length:
                    self._first(job, now, sampled, words)

    def _first(self, job: SimJob, now: float, sampled: Sampled, words: Sequence[int]) -> None:
        """A prefill is complete, and gives its first token."""
        token, reason = job.sample(words)
        job.first_at = job.first_at or now
        if reason is None:
            self.prefilling.remove(job)
            job.phase = "decoding"
            self.decoding.append(job)
        sampled(job, [token], reason)

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


def mixed_step_s(cost: CostModel, batch: int, context: int, pieces: Sequence[tuple[int, int]], theta: int) -> float:
    """Seconds of a step that decodes `batch` sequences and computes (tokens after which, how many) of each of some prompts.

    The cost functions take all of them for one prompt without history; the difference to what each attends to is added.
    """
    chunk, attention_s = 0, 0.0
    for done, tokens in pieces:
        attention_s += cost.t_pre(done, tokens, theta) - cost.t_pre(chunk, tokens, theta)
        chunk += tokens
    if not chunk:
        return cost.t_dec(batch, context, theta)
    if not batch:
        return cost.t_pre(0, chunk, theta) + attention_s
    return cost.t_mixed(batch, context, chunk, theta) + max(0.0, attention_s)
