"""The life of a job on a decode worker, apart from the steps that compute it: KV room, reads, tokens, the end, and what is kept."""

from __future__ import annotations

from bisect import insort
from math import inf

from ampd.simulator.cluster.batch import Batch
from ampd.simulator.cluster.chunking import Chunking
from ampd.simulator.cluster.gaps import Gaps
from ampd.simulator.cluster.job import DEFLECTED, LOCAL, Job
from ampd.simulator.cluster.meter import Meter
from ampd.simulator.cluster.times import StepTimes
from ampd.simulator.cluster.worker import UNBOUNDED, Worker, World
from ampd.simulator.timeline import DECODE, READ
from ampd.simulator.types import Group


class DecodeJobs(Worker):
    """All jobs of a decode worker: those that wait for KV room, read, prefill, or are about to join the batch, and the batch."""

    def __init__(self, world: World, id: int, group: Group) -> None:
        packs = world.setup.policy.local_prefill != "exclusive"
        slots = UNBOUNDED if world.setup.batched_tokens else world.setup.local_slots
        super().__init__(world, id, group, slots, group.chunk if packs else 0)
        self.batch = Batch(world.setup.block_size)
        self.gaps = Gaps(world.book.itl_p95_s)
        self.meter = Meter()
        self.times = StepTimes(world.cost, group.theta)
        self.chunking = Chunking(world.setup, group, world.cost, self.times)
        self.waiting: list[Job] = []
        self.prefilling: list[Job] = []
        self.joining: list[Job] = []
        self.paused: list[Job] = []  # that have come out of the batch's pause with their first token
        self.pause_s = 0.0  # for which the batch has been standing still
        self.holding = 0  # jobs with KV
        self.preemptions = 0
        self._most = group.max_running
        self._numbers = 0

    def wake(self, now: float) -> None:
        """Something has come up for the next step."""
        raise NotImplementedError

    # ---- jobs come

    def turn(self, now: float, job: Job) -> None:
        self.submit(now, job)

    def freed(self, now: float) -> None:
        if self.waiting:
            self.wake(now)

    def pins_yield(self) -> bool:
        """Continuum's hold for their time, unless nothing could ever go on."""
        return self.world.setup.retention != "ttl" or not self.holding

    def submit(self, now: float, job: Job) -> None:
        """A job waits for KV room: a prefill, local or another worker's, at its turn; or a decode leg, once its prefill is done."""
        self._numbers += 1
        by_program = self.world.setup.admission == "program"
        if by_program:  # those whose KV was kept for them lead (Continuum: time to live, then the program's arrival)
            job.order = (float(not self.pins.hold(job.index)), job.session.arrives_s, job.index)
        else:
            job.order = (self._numbers,)
        insort(self.waiting, job, key=_order)
        self.world.state.stir(now, self.id)
        self.wake(now)

    def admit(self, now: float) -> None:
        """Give KV to waiting jobs in their order, as far as there is room, and begin what they need."""
        waiting = self.waiting
        while waiting and self.holding < self._most and self.chunking.wants_more(self.prefilling):
            job = waiting[0]
            computes = job.generated or job.path == LOCAL
            if not self.fits(now, job, job.target + 1):
                return
            del waiting[0]
            self.holding += 1
            if self.world.setup.retention == "ttl":
                self.world.lives.admitted(now - job.arrived)
            if job.path == DEFLECTED and job.decode != self.id:
                if not self.begin_prefill(now, job, self._has_history):
                    self.prefilling.append(job)
            elif computes or not self._begin_read(now, job):
                self._compute(job)

    def _compute(self, job: Job) -> None:
        """The job computes here what is not in the prefix cache."""
        size = self.pool.size
        known = job.target if job.generated else job.matched
        keep = min(self.pool.held(job.index), known, (job.target - 1) // size * size)
        self.pins.use(job.index)
        job.entry = self.pool.take(job.index, keep, job.target + 1)
        job.done = keep
        if not job.generated:
            job.reused = keep
        self.remember(job)
        self.prefilling.append(job)

    def _begin_read(self, now: float, job: Job) -> bool:
        """Read the increment from the worker that prefilled it; False when it is not there any more."""
        source = self.world.workers[job.worker]
        if not source.pins.claim(job.index):
            self.world.counts["result_lost"] += 1
            return False
        size = self.pool.size
        keep = min(self.pool.held(job.index), job.matched, (job.prompt - 1) // size * size)
        self.pins.use(job.index)
        job.entry = self.pool.take(job.index, keep, job.prompt)
        job.reused = keep
        self.remember(job)
        seconds = self.world.cost.t_kv(job.prompt - keep, source.theta, self.theta, "increment")
        self.transfer(now, source.id, seconds, self._read, job)
        return True

    def _read(self, now: float, event: tuple[Job, float]) -> None:
        job, seconds = event
        job.moved_s += seconds
        self.world.workers[job.worker].give_back(now, job)
        if self.world.sink is not None:
            self.span(READ, job, now - seconds, now)
        self.joining.append(job)
        self.wake(now)

    def _has_history(self, now: float, event: tuple[Job, float]) -> None:
        self.prefilling.append(self.has_history(now, event))
        self.wake(now)

    def join(self, job: Job, kv: int) -> None:
        """A job with `kv` tokens of KV decodes from the next step on, to its end."""
        self.batch.join(job, kv, job.prompt + job.output - 1 - kv)

    def prefilled(self, now: float, job: Job) -> None:
        """A prefill is complete here, and has sampled the round's next token unless the round lives elsewhere."""
        if job.decode != self.id:
            self.holding -= 1
            self.result(now, job)
            self.queue.leave(now, job)
            return
        if job.generated:
            job.pauses.append(now - job.last_at)
            self.meter.gap(now - job.last_at)
        else:
            self.first_token(job, now)
            if job.path == LOCAL:
                self.queue.leave(now, job)
        if self.pause_s:
            self.paused.append(job)
        job.generated = 0
        job.first_step = self.batch.steps
        if job.target == job.prompt + job.output - 1:
            self._finish(now, job, job.target)
        else:
            self.join(job, job.target)

    def first_token(self, job: Job, at: float) -> None:
        """A round's first token leaves."""
        job.first_at = at
        self.meter.first_token(job.worker, at - job.arrived)

    def _finish(self, now: float, job: Job, kv: int) -> None:
        """A round's last token has left."""
        job.entry.blocks = kv // self.pool.size + 1
        self.holding -= 1
        if job.output > 1:
            self.chunking.answers.ended(job.output)
        row = self.world.book.add(now, job)
        gaps = self.batch.steps - job.first_step
        if job.spans is not None:
            if job.output > 1:
                self.gaps.ended_in_parts(row, [*job.spans, (job.first_step, gaps)], job.pauses)
        elif gaps:
            self.gaps.ended(row, job.first_step, gaps)
        if self.world.sink is not None:
            self.span(DECODE, job, job.first_at, now)
        self._retain(now, job, kv)
        self.world.ended(now, job)

    def _retain(self, now: float, job: Job, kv: int) -> None:
        """Keep a session's KV for its next round, as the setup has it."""
        setup, session = self.world.setup, job.session
        session.pinned, session.expires_at = 0, 0.0
        kept_s = 0.0
        if job.number < len(session.rounds) and setup.retention != "cache":
            kept_s = setup.idle_ttl_s if setup.retention == "pin" else self._lives_s(job, kv)
        if kept_s > 0.0:
            session.pinned, session.expires_at = kv, now + kept_s
            self.pins.pin(job.entry, kv, now + kept_s)
        else:
            self.pool.rest(job.entry, kv)

    def _lives_s(self, job: Job, kv: int) -> float:
        tool = job.session.rounds[job.number].tool
        return self.world.lives.of(tool, self.world.cost.t_pre(0, kv, self.theta))

    def make_room(self, now: float) -> None:
        """The batch outgrows the pool: give up pins, else the KV of the sequences that came last. They compute it again."""
        pool, batch = self.pool, self.batch
        self.pins.sweep(now)
        while batch.jobs and (lacks := batch.growth(1) - (pool.total - pool.used)) > 0:
            shed = self.pins.shed_pins
            self.pins.shed(lacks, -1)
            if self.pins.shed_pins == shed:
                self._preempt(now, next(reversed(batch.jobs.values())))

    def _preempt(self, now: float, job: Job) -> None:
        self.preemptions += 1
        batch = self.batch
        if job in self.paused:
            self.paused.remove(job)
        if job in batch.fresh:
            batch.fresh.remove(job)
        else:
            job.generated = job.output - (job.leave - batch.steps)
            job.last_at = now
            job.spans = [*(job.spans or ()), (job.first_step, batch.steps - job.first_step)]
        kv = batch.remove(job)
        job.entry.blocks = kv // self.pool.size + 1
        self.pool.rest(job.entry, kv)
        self.holding -= 1
        job.target = job.prompt + job.generated
        job.order = (-inf,) if self.world.setup.admission == "arrival" else (-1.0, job.session.arrives_s, job.index)
        insort(self.waiting, job, key=_order)

    def work_off(self) -> None:
        """Compute the percentiles of the rounds that have ended."""
        jobs = [*self.batch.jobs.values(), *self.prefilling, *self.waiting]
        firsts = [job.first_step if not job.spans else job.spans[0][0] for job in jobs if job.first_at == job.first_at]
        self.gaps.work_off(min(firsts, default=self.batch.steps))


def _order(job: Job) -> tuple[float, ...]:
    return job.order
