"""The running sequences of a decode worker, counted rather than stepped: who leaves when, the context, and the KV blocks they need.

All sequences gain one token in every step, so what a step changes is known in closed form: the context grows by the batch's size,
the next to leave is the head of a heap of leaving steps, and a sequence needs a new block whenever its length reaches a multiple of
the block size, which happens at the same residue of the step number as long as it runs.
"""

from __future__ import annotations

from heapq import heappop, heappush

from ampd.simulator.cluster.job import Job


class Batch:
    """`steps` are over since the worker's start; `context` tokens of KV are attended to in the coming one."""

    __slots__ = ("_grows", "_leaving", "_size", "_tie", "context", "fresh", "jobs", "steps")

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._leaving: list[tuple[int, int, Job]] = []
        self._tie = 0
        self._grows = [0] * (2 * block_size)  # by residue, twice over: sequences that need a block after such a step
        self.jobs: dict[int, Job] = {}  # by session, in the order of joining
        self.fresh: list[Job] = []  # without a first token yet
        self.context = 0
        self.steps = 0

    def __len__(self) -> int:
        return len(self.jobs)

    def join(self, job: Job, kv: int, tokens: int) -> None:
        """A sequence with `kv` tokens of KV decodes from the coming step on, for `tokens` steps."""
        self._tie += 1
        job.ticket = self._tie
        job.leave = self.steps + tokens
        heappush(self._leaving, (job.leave, self._tie, job))
        self.jobs[job.index] = job
        self.context += kv
        self._count(self.steps - kv, 1)

    def remove(self, job: Job) -> int:
        """A sequence leaves; returns its tokens of KV."""
        del self.jobs[job.index]
        kv = job.prompt + job.output - 1 - (job.leave - self.steps)
        self.context -= kv
        self._count(self.steps - kv, -1)
        job.ticket = 0  # its entry in the heap is stale
        return kv

    def _count(self, offset: int, by: int) -> None:
        residue = offset % self._size
        self._grows[residue] += by
        self._grows[residue + self._size] += by

    def until_leave(self) -> int:
        """Steps until the next sequence leaves. The batch must not be empty."""
        leaving = self._leaving
        while leaving[0][2].ticket != leaving[0][1]:
            heappop(leaving)
        return leaving[0][0] - self.steps

    def leavers(self) -> list[Job]:
        """Those whose last token left with the last step, still members."""
        found: list[Job] = []
        leaving = self._leaving
        while leaving and leaving[0][0] <= self.steps:
            _, ticket, job = heappop(leaving)
            if job.ticket == ticket:
                found.append(job)
        return found

    def growth(self, count: int) -> int:
        """Blocks that the sequences come to need in the next `count` steps."""
        size = self._size
        begin = (self.steps + 1) % size
        if count < size:
            return sum(self._grows[begin : begin + count])
        rounds, rest = divmod(count, size)
        return rounds * len(self.jobs) + sum(self._grows[begin : begin + rest])

    def steps_within(self, blocks: int, count: int) -> int:
        """The most steps, up to `count`, that need no more than so many blocks."""
        if len(self.jobs) * (count // self._size + 1) <= blocks or self.growth(count) <= blocks:
            return count
        low, high = 0, count
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.growth(middle) <= blocks else (low, middle)
        return low

    def advance(self, count: int) -> None:
        """`count` steps are over."""
        self.steps += count
        self.context += count * len(self.jobs)
