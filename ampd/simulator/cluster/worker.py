"""What prefill and decode workers share: queue, KV pool, pins, the lazy read of a history, and reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

from ampd.policy.types import CostModel, Role
from ampd.simulator.cluster.job import Job
from ampd.simulator.cluster.link import Network
from ampd.simulator.cluster.loop import Loop
from ampd.simulator.cluster.pins import Pins
from ampd.simulator.cluster.pool import Pool
from ampd.simulator.cluster.queue import PrefillQueue
from ampd.simulator.cluster.ttl import TimesToLive
from ampd.simulator.cluster.view import State
from ampd.simulator.records import RecordBook
from ampd.simulator.timeline import QUEUE, READ, TimelineSink
from ampd.simulator.types import Group, Setup

UNBOUNDED = 1 << 30  # queue slots of an engine that has a queue of its own


@dataclass(slots=True)
class World:
    """What all parts of one simulation share. `prefilled` and `ended` take a round on from its workers."""

    setup: Setup
    cost: CostModel
    loop: Loop
    network: Network
    state: State
    book: RecordBook
    lives: TimesToLive
    sink: TimelineSink | None
    prefilled: Callable[[float, Job], None] = lambda now, job: None
    ended: Callable[[float, Job], None] = lambda now, job: None
    workers: list[Worker] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)


class Worker:
    """One worker; `busy_s` seconds of computing so far. The subclasses say what happens when a prefill's turn comes."""

    def __init__(self, world: World, id: int, group: Group, slots: int, room: int = 0) -> None:
        self.world, self.id, self.theta = world, id, group.theta
        self.role: Role = group.role
        self.pool = Pool(group.kv_tokens, world.setup.block_size)
        self.kv_tokens = self.pool.total * self.pool.size
        self.pins = Pins(self.pool, latest_first=world.setup.retention == "ttl")
        self.queue = PrefillQueue(slots, world.setup.policy.reorder, self._turn_comes, room)
        self.busy_s = 0.0

    def _turn_comes(self, now: float, job: Job) -> None:
        self.world.state.soon(now, self.id)
        if self.world.sink is not None:
            self.span(QUEUE, job, job.queued_at, now)
        self.turn(now, job)

    def turn(self, now: float, job: Job) -> None:
        """A prefill's turn has come; its queue slot is its until it is left."""
        raise NotImplementedError

    def freed(self, now: float) -> None:
        """KV has been given up that somebody may be waiting for."""
        raise NotImplementedError

    def departures(self) -> tuple[int, float]:
        """See view.Reporting."""
        queue = self.queue
        left = queue.departed, queue.departed_s
        queue.departed, queue.departed_s = 0, 0.0
        return left

    # ---- KV

    def fits(self, now: float, job: Job, tokens: int) -> bool:
        """Whether a job can have so many tokens in use; pins are given up for it."""
        lacks = self.pool.lacks(job.index, tokens)
        if lacks <= 0:
            return True
        self.pins.sweep(now)
        lacks = self.pool.lacks(job.index, tokens)
        if lacks > 0 and self.pins_yield():
            self.pins.shed(lacks, job.index)
            lacks = self.pool.lacks(job.index, tokens)
        return lacks <= 0

    def pins_yield(self) -> bool:
        """Whether pins are given up for a job that would not fit."""
        return True

    def own_history(self, job: Job) -> int:
        """Tokens of a prompt that the prefix cache here holds. At least one is always computed, to sample from."""
        if self.world.setup.prefill_history == "none":
            return 0
        size = self.pool.size
        return min(self.pool.held(job.index), job.matched, (job.prompt - 1) // size * size)

    def begin_prefill(self, now: float, job: Job, read: Callable[[float, tuple[Job, float]], None]) -> bool:
        """Give another worker's round its KV here, and begin the lazy read of the history that is missing, if there is any.

        True when `read` will be called at the read's end.
        """
        job.own = job.done = self.own_history(job)
        self.pins.use(job.index)
        job.entry = self.pool.take(job.index, job.own, job.prompt)
        self.remember(job)
        if not job.l_hist or self.world.setup.prefill_history != "read":
            return False
        owner = self.world.workers[job.decode]
        if not owner.lend(now, job):
            self.world.counts["history_lost"] += 1
            return False
        missing = job.l_hist - job.own
        if missing <= 0:
            owner.give_back(now, job)
            return False
        seconds = self.world.cost.t_kv(missing, owner.theta, self.theta, "history")
        self.transfer(now, owner.id, seconds, read, job)
        return True

    def transfer(self, now: float, source: int, seconds: float, done: Callable[[float, tuple[Job, float]], None], job: Job) -> None:
        """Begin to read from another worker."""
        world = self.world
        world.network.start(now, source, self.id, seconds, done, job)
        world.state.stir(now, self.id)
        world.state.stir(now, source)

    def has_history(self, now: float, event: tuple[Job, float]) -> Job:
        """The lazy read is over."""
        job, seconds = event
        job.moved_s += seconds
        job.done = max(job.own, job.l_hist)
        self.world.workers[job.decode].give_back(now, job)
        if self.world.sink is not None:
            self.span(READ, job, now - seconds, now)
        return job

    def settle(self, now: float) -> None:
        """Bring the KV pool up to date, before somebody else changes it."""

    def lend(self, now: float, job: Job) -> bool:
        """Claim the session's pin for a reader. Without pins, what is cached will do while it is there."""
        if self.pins.claim(job.index):
            return True
        if self.world.setup.retention == "pin" or self.pool.held(job.index) < max(job.l_hist, 1):
            return False
        self.settle(now)
        self.pins.keep(job.index)
        return True

    def give_back(self, now: float, job: Job) -> None:
        """A reader is done, or the session's pin is not needed any more."""
        self.settle(now)
        self.pins.drop(job.index)
        self.world.state.stir(now, self.id)
        self.freed(now)

    def remember(self, job: Job) -> None:
        """Note that the session has KV here."""
        if self.id not in job.session.places:
            job.session.places.append(self.id)

    def result(self, now: float, job: Job) -> None:
        """A remote prefill is done: keep it until its decode worker has read it, and go on."""
        self.pins.pin(job.entry, job.prompt, inf)
        self.world.prefilled(now, job)

    def span(self, lane: str, job: Job, begin_s: float, end_s: float) -> None:
        """Tell the timeline. Callers ask first whether there is one."""
        if self.world.sink is not None and end_s > begin_s:
            name = f"{job.session.name} round {job.number}"
            args = {"prompt": job.prompt, "l_hist": job.l_hist, "output": job.output}
            self.world.sink.span(self.id, lane, name, begin_s, end_s, args)
