"""Sessions and their rounds under way."""

from __future__ import annotations

from math import nan
from typing import NamedTuple

from ampd.policy.types import PrefillTask
from ampd.simulator.cluster.pool import Entry
from ampd.simulator.types import TraceSession

LOCAL, REMOTE, DEFLECTED = 0, 1, 2  # indices into types.PATHS


class Held(NamedTuple):
    """What a session's prefill left in a worker's own cache, at `written` on that worker's clock; as ampd.state.base.Held."""

    worker: int
    epoch: str
    tokens: int
    written: int


class Session:
    """A session from its first arrival to the end of its last round.

    `number` counts the rounds begun. `context`: tokens of the last round, prompt and answer. `pinned` tokens are believed to be
    kept by the decode worker until `expires_at`. `places`: workers whose caches may hold some of it.
    """

    __slots__ = ("arrives_s", "context", "decode", "expires_at", "held", "index", "name", "number", "pinned", "places", "rounds")

    def __init__(self, index: int, trace: TraceSession) -> None:
        self.index = index
        self.name = trace.name
        self.rounds = trace.rounds
        self.arrives_s = trace.arrives_s
        self.number = 0
        self.decode = -1
        self.context = 0
        self.pinned = 0
        self.expires_at = 0.0
        self.held: tuple[Held, ...] = ()
        self.places: list[int] = []


class Job:
    """One round under way. Tokens and seconds.

    `matched` tokens of the prompt are the session's, in whole blocks; `l_hist` of them are believed to be with the decode
    worker. `own`: what the prefill worker's cache held; `reused`: what the decode worker's did. `done` of `target` tokens have
    KV where the job computes. `first_step` steps of its decode worker's batch were over when its first token left; it leaves the
    batch at step `leave`.
    """

    __slots__ = (
        "arrived", "cost_s", "decode", "done", "entry", "first_at", "first_step", "generated", "index", "l_hist", "last_at",
        "leave",
        "matched", "moved_s", "number", "order", "output", "own", "path", "pauses", "prompt", "queued_at", "queued_s", "reused",
        "session", "spans", "started_at", "target", "task", "ticket", "worker",
    )  # fmt: skip

    task: PrefillTask
    entry: Entry

    def __init__(self, session: Session, prompt: int, output: int, arrived: float) -> None:
        self.session = session
        self.index = session.index
        self.number = session.number
        self.prompt = prompt
        self.output = output
        self.arrived = arrived
        self.decode = session.decode
        self.matched = self.l_hist = self.own = self.reused = self.done = 0
        self.target = prompt
        self.path = LOCAL
        self.worker = -1
        self.cost_s = 0.0
        self.order: tuple[float, ...] = ()
        self.queued_at = self.queued_s = self.moved_s = self.started_at = 0.0
        self.first_at = self.last_at = nan
        self.first_step = self.leave = self.ticket = 0
        self.generated = 0  # tokens that had left when it was preempted last
        self.spans: list[tuple[int, int]] | None = None  # of a round that was preempted: its steps before
        self.pauses: list[float] = []  # and the gaps between
