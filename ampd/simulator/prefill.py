"""A prefill worker: one prompt computes while the next one's history is read, in the order of the queue."""

from __future__ import annotations

from collections import deque
from math import inf

from ampd.simulator.job import Job
from ampd.simulator.timeline import PREFILL
from ampd.simulator.types import Group
from ampd.simulator.view import Row
from ampd.simulator.worker import Worker, World

_SLOTS = 2


class PrefillWorker(Worker):
    """As the engine of a prefill worker has it (ampd/workers/engines/sim_batch.py, `Rules.alone`): at most two prompts hold KV, and
    the second is read while the first computes, not while it is read.
    """

    def __init__(self, world: World, id: int, group: Group) -> None:
        super().__init__(world, id, group, _SLOTS)
        self._waiting: deque[Job] = deque()
        self._reading: Job | None = None
        self._ready: deque[Job] = deque()
        self._computing: Job | None = None

    def turn(self, now: float, job: Job) -> None:
        self._waiting.append(job)
        self._admit(now)

    def freed(self, now: float) -> None:
        if self._waiting:
            self._admit(now)

    def _admit(self, now: float) -> None:
        while self._waiting and self._reading is None and len(self._ready) + (self._computing is not None) < _SLOTS:
            job = self._waiting[0]
            if not self.fits(now, job, job.prompt):
                return
            self._waiting.popleft()
            if self.begin_prefill(now, job, self._read):
                self._reading = job
            else:
                self._ready.append(job)
                self._compute(now)

    def _read(self, now: float, event: tuple[Job, float]) -> None:
        self._reading = None
        self._ready.append(self.has_history(now, event))
        self._compute(now)
        self._admit(now)

    def _compute(self, now: float) -> None:
        if self._computing is None and self._ready:
            job = self._computing = self._ready.popleft()
            seconds = self.world.cost.t_pre(job.done, job.prompt - job.done, self.theta)
            self.busy_s += seconds
            if self.world.sink is not None:
                self.span(PREFILL, job, now, now + seconds)
            self.world.loop.at(now + seconds, self._over, job)

    def _over(self, now: float, job: Job) -> None:
        self._computing = None
        self.result(now, job)
        self._compute(now)
        self.queue.leave(now, job)
        self._admit(now)

    def report(self, now: float, row: Row) -> None:
        """See view.Reporting."""
        pool, world = self.pool, self.world
        row.running = len(self._ready) + (self._computing is not None) + (self._reading is not None)
        row.running_s = self.queue.running_s(now)
        row.kv_free = (pool.total - pool.used) * pool.size
        row.kv_pinned = self.pins.tokens
        row.kv_written = pool.written * pool.size
        row.link_s = world.network.owed_s(self.id, now)
        row.next_at = now if row.running or self._waiting or len(self.pins) or row.link_s or len(self.queue) else inf

    def samples(self) -> tuple[list[tuple[int, float]], float, int]:
        """See view.Reporting: tokens leave at decode workers."""
        return [], 0.0, 0
