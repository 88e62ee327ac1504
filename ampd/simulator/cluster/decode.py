"""A decode worker: continuous batching of the sessions bound to it, local prefills and those of others beside the batch.

A step computes one token of every running sequence and, beside them, a chunk of a prefill, as in ampd/workers/engines/sim_batch.py.
Steps of an unchanged batch are passed in one event; whatever comes up ends the run of steps with the step under way.
"""

from __future__ import annotations

from ampd.simulator.cluster.decode_jobs import DecodeJobs
from ampd.simulator.cluster.job import Job
from ampd.simulator.cluster.times import Steps
from ampd.simulator.cluster.view import Row
from ampd.simulator.cluster.worker import World
from ampd.simulator.timeline import PREFILL
from ampd.simulator.types import Group

# Pins are given up from `_HIGH` of the KV pool in use, down to `_LOW` (ampd/workers/worker.py).
_HIGH, _LOW = 0.92, 0.85
_NO_STEPS = Steps(0, 0.0, 0.0)


class DecodeWorker(DecodeJobs):
    """One decode worker, or a colocated engine: the steps that it makes."""

    def __init__(self, world: World, id: int, group: Group) -> None:
        super().__init__(world, id, group)
        self._mark = int(_HIGH * self.pool.total) if world.setup.retention == "pin" else self.pool.total
        # The run of steps under way: since `_began`, `_steps` of the batch; a step with `_pieces` of prefills is run alone.
        self._idle = True
        self._event = 0  # number of its valid end event; 0 while the next run is being prepared
        self._events = 0
        self._began = 0.0
        self._steps = _NO_STEPS
        self._settled = self._grown = 0  # steps of the run whose blocks have been allocated, and those blocks
        self._pieces: list[tuple[Job, int]] = []

    def wake(self, now: float) -> None:
        """Something has come up: the step under way is the last of its run."""
        if self._idle:
            self._idle = False
            self._next(now)
            return
        steps = self._steps
        if steps.count > 1 and self._event:
            over = steps.over_after(now - self._began)
            if over + 1 < steps.count:
                steps.count = over + 1
                self._end_at(self._began + steps.lasts_s(steps.count))

    def _end_at(self, time: float) -> None:
        self._events += 1
        self._event = self._events
        self.world.loop.at(time, self._over, self._event)

    # ---- steps

    def _over(self, now: float, event: int) -> None:
        if event != self._event:
            return
        self._event = 0  # whatever comes up until the next run has begun will be seen by it
        if self._steps.count:
            self._advance(now)
        if self._pieces:
            self._computed(now)
        self._next(now)

    def _next(self, now: float) -> None:
        """Admit what has come and begin a run of steps."""
        self._event = 0
        if self.pool.used > self._mark:
            self.pins.sweep(now)
            self.pins.shed(int(self.pool.used - _LOW * self.pool.total), -1)
        if self.waiting:
            self.admit(now)
        for job in self.joining:
            self.join(job, job.target - 1)
            self.batch.fresh.append(job)
        self.joining.clear()
        if self.prefilling:
            self._begin_mixed(now)
        elif self.batch.jobs:
            self._begin_run(now)
        else:
            self._steps, self._idle, self._settled = _NO_STEPS, True, 0

    def _begin_run(self, now: float) -> None:
        batch, pool = self.batch, self.pool
        count = batch.until_leave()
        if len(batch.jobs) * (count // pool.size + 1) > self._mark - pool.used:
            count = self._within_pool(now, count)
            if not batch.jobs:  # all were preempted
                self._next(now)
                return
        self._begin(now, self.times.unchanged(len(batch.jobs), batch.context, count))

    def _within_pool(self, now: float, count: int) -> int:
        """The most steps, up to `count`, that the pool has room for, and until pins have to be given up; 1 at least.

        Makes room for that one.
        """
        batch, pool = self.batch, self.pool
        if batch.growth(1) > pool.total - pool.used:
            self.make_room(now)
            if not batch.jobs:
                return 0
            count = batch.until_leave()
        count = max(1, batch.steps_within(pool.total - pool.used, count))
        if self.pins.free:  # they are given up once the mark is passed
            until_mark = self._mark - pool.used
            count = min(count, 1 + (batch.steps_within(until_mark, count) if until_mark >= 0 else 0))
        return count

    def _begin_mixed(self, now: float) -> None:
        """A step with a part of one or more prefills; without the batch if it pauses for them."""
        batch = self.batch
        pauses = self.chunking.pauses
        if batch.jobs and not pauses and batch.growth(1) > self.pool.total - self.pool.used:
            self.make_room(now)
        self._pieces = self.chunking.pieces(now, batch, self.prefilling)
        done = [(job.done, chunk) for job, chunk in self._pieces]
        if pauses or not batch.jobs:
            seconds = self.times.mixed(0, 0, done)
            if batch.jobs:
                self.pause_s += seconds
            self._steps, self._began, self._settled = Steps(0, seconds, 0.0), now, 0
            self._end_at(now + seconds)
        else:
            self._begin(now, Steps(1, self.times.mixed(len(batch.jobs), batch.context, done), 0.0))

    def _begin(self, now: float, steps: Steps) -> None:
        """Begin a run of steps of the batch."""
        batch = self.batch
        self._steps, self._began, self._settled = steps, now, 0
        self._grown = 0
        self.meter.begin(len(batch.fresh))
        if batch.fresh:
            for job in batch.fresh:
                self.first_token(job, now + steps.first_s)
                job.first_step = batch.steps + 1
            batch.fresh.clear()
        if self.pause_s:
            for job in self.paused:  # the pause is a gap of all others
                job.spans = job.spans or []
                job.pauses.append(steps.first_s)
                job.first_step += 1
            self.paused.clear()
        self._end_at(now + steps.lasts_s(steps.count))

    def _advance(self, now: float) -> None:
        """The run's steps are over: tokens have left, and with some of them their rounds."""
        batch, steps = self.batch, self._steps
        count = steps.count
        self._settle(count)
        seconds = steps.lasts_s(count)
        self.busy_s += seconds
        self.meter.note(len(batch.jobs), steps, count, seconds)
        batch.advance(count)
        if self.pause_s:
            self.gaps.ran(1, steps.first_s + self.pause_s, 0.0)
            self.meter.paused(len(batch.jobs), self.pause_s)
            self.pause_s = 0.0
            if count > 1:
                self.gaps.ran(count - 1, steps.first_s + steps.more_s, steps.more_s)
        else:
            self.gaps.ran(count, steps.first_s, steps.more_s)
        for job in batch.leavers():
            self._finish(now, job, batch.remove(job))
        if self.gaps.full:
            self.work_off()

    def settle(self, now: float) -> None:
        self._settle(self._steps.over_after(now - self._began))

    def _settle(self, done: int) -> None:
        """The run's first `done` steps are over: allocate the blocks that the batch has come to need."""
        if done > self._settled:
            blocks = self.batch.growth(done)
            if blocks > self._grown:
                self.pool.allocate(blocks - self._grown)
                self._grown = blocks
            self._settled = done

    def _computed(self, now: float) -> None:
        """Chunks of prefills are over."""
        if not self._steps.count:
            self.busy_s += self._steps.first_s
        pieces, self._pieces = self._pieces, []
        for job, chunk in pieces:
            job.done += chunk
            if self.world.sink is not None:
                self.span(PREFILL, job, self._began, now)
            if job.done == job.target:
                self.prefilling.remove(job)
                self.prefilled(now, job)

    # ---- reports

    def report(self, now: float, row: Row) -> None:
        """See view.Reporting."""
        batch, pool = self.batch, self.pool
        done = self._steps.over_after(now - self._began)
        self._settle(done)
        self.meter.note(len(batch.jobs), self._steps, done, self._steps.lasts_s(done))
        self.pins.sweep(now)
        row.running = self.holding
        row.running_s = self.queue.running_s(now)
        row.context = batch.context + done * len(batch.jobs)
        row.kv_free = max(0, pool.total - pool.used) * pool.size
        row.kv_pinned = self.pins.tokens
        row.kv_written = pool.written * pool.size
        row.link_s = self.world.network.owed_s(self.id, now)
        busy = self.holding or self.waiting or row.link_s or len(self.queue) or not self.meter.empty
        row.next_at = now if busy else self.pins.next_expiry()

    def samples(self) -> tuple[list[tuple[int, float]], float, int]:
        """See view.Reporting."""
        return self.meter.take()
