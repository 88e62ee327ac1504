"""A prefill worker: one prompt computes while the next one's history is read, in the order of the queue."""

from __future__ import annotations

from collections import deque
from math import inf

from ampd.simulator.cluster.chunking import Pieces, shared_out
from ampd.simulator.cluster.job import Job
from ampd.simulator.cluster.times import StepTimes
from ampd.simulator.cluster.view import Row
from ampd.simulator.cluster.worker import UNBOUNDED, Worker, World
from ampd.simulator.timeline import PREFILL
from ampd.simulator.types import Group

_SLOTS = 2


class PrefillWorker(Worker):
    """As the engine of a prefill worker has it (ampd/workers/engines/sim_batch.py, `Rules.alone`): at most two prompts hold KV, and
    the second is read while the first computes, not while it is read.

    With `Setup.prefill_tokens` it is vLLM's own engine instead: prompts share steps, those for the coming two steps have KV and are
    read side by side, and results are kept until they are read (as NIXL's connector does for minutes).
    """

    def __init__(self, world: World, id: int, group: Group) -> None:
        self._tokens = world.setup.prefill_tokens
        self._most = group.max_running if self._tokens else _SLOTS
        super().__init__(world, id, group, UNBOUNDED if self._tokens else _SLOTS)
        self._times = StepTimes(world.cost, group.theta)
        self._waiting: deque[Job] = deque()
        self._reading = 0
        self._owed = 0  # tokens to compute of prompts that have KV
        self._ready: deque[Job] = deque()
        self._step: Pieces = []

    def turn(self, now: float, job: Job) -> None:
        self._waiting.append(job)
        self._admit(now)

    def freed(self, now: float) -> None:
        if self._waiting:
            self._admit(now)

    def pins_yield(self) -> bool:
        """Whether results are given up for a prompt that would not fit."""
        return not self._tokens

    def _wants_more(self) -> bool:
        if self._owed >= 2 * self._tokens if self._tokens else self._reading:
            return False
        return len(self._ready) + self._reading < self._most

    def _admit(self, now: float) -> None:
        while self._waiting and self._wants_more():
            job = self._waiting[0]
            if not self.fits(now, job, job.prompt):
                return
            self._waiting.popleft()
            if self.begin_prefill(now, job, self._read):
                self._reading += 1
                self._owed += job.prompt - max(job.own, job.l_hist)
            else:
                self._owed += job.prompt - job.done
                self._ready.append(job)
                self._compute(now)

    def _read(self, now: float, event: tuple[Job, float]) -> None:
        self._reading -= 1
        self._ready.append(self.has_history(now, event))
        self._compute(now)
        self._admit(now)

    def _compute(self, now: float) -> None:
        if self._step or not self._ready:
            return
        if self._tokens:
            self._step = shared_out(self._tokens, self._ready)
            seconds = self._times.mixed(0, 0, [(job.done, chunk) for job, chunk in self._step])
        else:
            job = self._ready[0]
            self._step = [(job, job.prompt - job.done)]
            seconds = self.world.cost.t_pre(job.done, job.prompt - job.done, self.theta)
        self.busy_s += seconds
        if self.world.sink is not None:
            for job, _ in self._step:
                self.span(PREFILL, job, now, now + seconds)
        self.world.loop.at(now + seconds, self._over, None)

    def _over(self, now: float, _: None) -> None:
        step, self._step = self._step, []
        ended = []
        for job, chunk in step:
            job.done += chunk
            self._owed -= chunk
            if job.done == job.prompt:
                self._ready.popleft()  # they end in their order
                self.result(now, job)
                ended.append(job)
        self._compute(now)
        for job in ended:
            self.queue.leave(now, job)
        self._admit(now)

    def report(self, now: float, row: Row) -> None:
        """See view.Reporting."""
        pool, world = self.pool, self.world
        row.running = len(self._ready) + self._reading
        row.running_s = self.queue.running_s(now)
        row.kv_free = (pool.total - pool.used) * pool.size
        row.kv_pinned = self.pins.tokens
        row.kv_written = pool.written * pool.size
        row.link_s = world.network.owed_s(self.id, now)
        row.next_at = now if row.running or self._waiting or len(self.pins) or row.link_s or len(self.queue) else inf

    def samples(self) -> tuple[list[tuple[int, float]], float, int]:
        """See view.Reporting: tokens leave at decode workers."""
        return [], 0.0, 0
