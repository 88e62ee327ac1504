"""The StateStore protocol and its rows. Rows are msgpack arrays (versioned by SCHEMA); all times are the store's own clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from ampd.messages import Handle
from ampd.policy.types import ClusterView, PrefillTask

SCHEMA = 2


class WorkerRow(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What a worker says of itself with each heartbeat. Sizes in tokens, times in seconds."""

    schema: int = SCHEMA
    id: int
    role: Literal["prefill", "decode"]
    epoch: str
    theta: int
    running: int = 0
    running_s: float = 0.0  # estimated rest of the prefill that is running
    kv_total: int = 0
    kv_free: int = 0
    kv_pinned: int = 0
    draining: bool = False
    context: int = 0
    link_s: float = 0.0
    kv_written: int = 0
    t_pre_factor: float = 1.0  # these four as in WorkerView
    t_dec_factor: float = 1.0
    t_mixed_factor: float = 1.0
    t_kv_factor: float = 1.0


class Held(msgspec.Struct, frozen=True, array_like=True):
    """`tokens` leading tokens that a session's prefill left in a prefill worker's prefix cache, at `written` on its clock."""

    worker: int
    epoch: str
    tokens: int
    written: int


class SessionRow(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A session's binding and what is known of its KV.

    `version` is the number of the opening (or binding) that returned this row; a round passes it back unchanged when it closes.
    Of two rounds of one session that overlap, the later opened one wins: `close_round` refuses an older opening's row after it.
    """

    schema: int = SCHEMA
    worker: int
    epoch: str
    round: int = 0
    version: int = 0
    tokens: int = 0  # tokens the ledger covers
    handle: Handle | None = None
    derived: bool = False
    held: tuple[Held, ...] = ()  # latest first, a few; empty in a close keeps what is stored


class Opened(msgspec.Struct, frozen=True):
    """A round's opening: the session as it stands (None: not bound yet), its ledger, and the cluster, read in one trip.

    The handle in `session` is this caller's alone: opening takes it out of the store.
    `degraded`: the store did not answer, these are this process's own copies. `unsure`: it did not, or came back empty just now,
    so a session that is not here, or its last rounds, may be known to others.
    """

    session: SessionRow | None
    ledger: bytes
    view: ClusterView
    degraded: bool = False
    bindings: Sequence[tuple[str, SessionRow]] = ()
    unsure: bool = False


class QueueEntry(msgspec.Struct, frozen=True, array_like=True):
    """One waiting prefill, visible to all. `arrived_at` is the Coordinator's unix time, for display; order is by enqueueing."""

    id: str
    session: str
    round: int
    l_hist: int
    l_incr: int
    cost_s: float
    ttft_target_s: float
    arrived_at: float
    postponed: int = 0
    priority: int = 0

    def task(self) -> PrefillTask:
        """The entry as the reordering policy sees it."""
        return PrefillTask(self.id, self.arrived_at, self.cost_s, self.ttft_target_s, self.postponed, self.priority)


@dataclass(frozen=True, slots=True)
class Sample:
    """`count` observations that sum to `total` seconds, for the window of `worker`."""

    worker: int
    kind: Literal["ttft", "itl"]
    total: float
    count: int


class StateStore(Protocol):
    """Everything that Coordinators and workers share. Every method raises StateError when the store does not answer in time."""

    async def connect(self) -> bool:
        """Check that the store answers and speaks SCHEMA. Raises SetupError with the fix.

        Called again, it returns whether what was in the store at the call before has been lost.
        """

    async def close(self) -> None:
        """Give back connections."""

    async def put_worker(self, row: WorkerRow) -> None:
        """Heartbeat: store the row, let old window seconds go, and forget promises older than the previous heartbeat.

        A row with another epoch than the stored one is a new worker: its predecessor's queue and window are dropped.
        """

    async def report(
        self, row: WorkerRow, departures: Sequence[tuple[str, Sequence[str]]] = (), samples: Sequence[Sample] = ()
    ) -> None:
        """A worker's news in one trip: `departures` (a task, and the ids postponed by it) as by `dequeue`, `samples` as by
        `observe`, then the heartbeat as by `put_worker`. Done again after an error, it counts samples twice and nothing else.
        """

    async def remove_worker(self, worker: int) -> None:
        """Forget a worker: its row, window and queue."""

    async def view(self) -> ClusterView:
        """All workers whose heartbeat is fresh."""

    async def open_round(self, session: str, known: bytes = b"") -> Opened:
        """Read session, ledger and cluster in one trip; take the handle; refresh the session's idle expiry.

        `known` is the ledger that the caller has of the session: if it is still the one, it is not sent again.
        """

    async def bind(
        self, session: str, worker: int, epoch: str, tokens: int, *, replace: str | None = None, version: int = 0
    ) -> SessionRow:
        """Bind and promise `tokens` of room (0: the session's KV is known to be there); first writer wins.

        Returns the effective binding. `replace` names the epoch of a dead binding that may be overwritten (a rebinding, which
        forgets the ledger); any other binding stands. The row carries a handle only if the rebinding displaced one, which the
        caller releases.
        Its version is above `version`, and above those of any ended session of the same name.
        """

    async def restore(self, session: str, row: SessionRow, ledger: bytes, closed: int) -> SessionRow:
        """Put back what a store that lost a session (or missed its last rounds) held of it: the first writer's binding stands.

        `row.version` is the number of the last opening, `closed` of the last that closed: what a later one stored stays.
        Returns the effective binding, without handle.
        """

    async def close_round(self, session: str, row: SessionRow, ledger: bytes | None) -> Handle | None:
        """Store a round's end if the binding's epoch still stands and no later opened round has closed before it.

        Returns the handle that nobody will use, to be released: the one displaced by this round's, or this round's own when it was
        refused. Without a ledger the stored one stands; with neither ledger nor handle (the round kept nothing) both stand.
        Idempotent. To give an unused handle back, close with it and no ledger.
        """

    async def end_session(self, session: str) -> SessionRow | None:
        """Delete the session. Returns its last row, whose handle the caller releases."""

    async def enqueue(self, worker: int, entry: QueueEntry) -> None:
        """Add a waiting prefill to a known worker's queue and to its queued seconds. Idempotent by task id."""

    def enqueue_soon(self, worker: int, entry: QueueEntry) -> None:
        """Enqueue without waiting: written when this returns, so that it precedes this process's later calls about the task.

        A failure is logged, never raised. The worker's own `dequeue` may overtake it; the worker's audit removes what is left then.
        """

    async def dequeue(self, worker: int, task: str, postponed: Sequence[str] = ()) -> None:
        """Remove a task (served, cancelled or failed) and count one postponement for each id in `postponed`. Idempotent."""

    async def queue(self, worker: int) -> list[QueueEntry]:
        """A worker's waiting prefills in the order of their enqueueing."""

    async def observe(self, samples: Sequence[Sample]) -> None:
        """Add samples to the windows of known workers; others are ignored."""

    async def sessions(self) -> int:
        """How many sessions are bound."""
