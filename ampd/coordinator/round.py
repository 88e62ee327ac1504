"""One round under way: everything the Coordinator knows of it, and the state it is in."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ampd.coordinator.custody import Custody
from ampd.coordinator.keys import SessionKey
from ampd.coordinator.request import Ask
from ampd.ledger import Match
from ampd.messages import PrefillResult, RoundStats
from ampd.policy.binding import Rebinding
from ampd.policy.types import ClusterView, Decision, WorkerView
from ampd.state.base import SessionRow


class Phase(Enum):
    """The states of a round, and what a client's going away does in each.

    OPENED      nothing runs: the history goes back to the session
    PREFILLING  the prefill worker is told to stop; it ends a read under way by itself. The history is released: it may be claimed
    STARTING    decode dispatched, no token yet: the decode worker is told to stop. Of a remote round, the prefill worker's pin is
                released after a grace, since it may be being read; of a local one, the history goes back to the session
    STREAMING   the decode worker is told to finish: the session keeps the KV of all tokens so far. A stop string looks the same:
                the frontend cuts the answer there and goes away. A round that leaves no KV is stopped: of a local one, the history
                goes back to the session
    CLOSED      nothing is left to do
    """

    OPENED = "opened"
    PREFILLING = "prefilling"
    STARTING = "starting"
    STREAMING = "streaming"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class History:
    """What the ledger says of a prompt; tokens, in whole blocks.

    `matched` leading tokens are the session's. `l_hist` of them have KV that the bound worker still holds, and leave at least one
    token to compute. `rewritten`: the ledger also holds blocks that the prompt does not have.
    """

    matched: int = 0
    l_hist: int = 0
    rewritten: bool = False
    match: Match | None = None  # from which the ledger grows


@dataclass(slots=True)
class Round:
    """The mutable state of one round. `arrived_at` is on the Coordinator's monotonic clock."""

    id: str
    ask: Ask
    key: SessionKey | None
    arrived_at: float
    number: int
    view: ClusterView
    row: SessionRow | None  # None: no session, or none that the store knows
    ledger: bytes
    bound: WorkerView
    history: History
    custody: Custody
    held: Mapping[int, int] = field(default_factory=dict)  # tokens of the prompt in other workers' prefix caches, by worker
    degraded: bool = False
    read_s: float = 0.0  # of opening it in the store
    rebound: str | None = None  # why the session left its former decode worker in this round
    rebinding: Rebinding | None = None  # what leaving a live worker costs and saves
    replayed: bool = False  # its decode worker died before the first token
    phase: Phase = Phase.OPENED
    decision: Decision | None = None
    extrapolated: bool = False  # the decision's T_pre is outside the profile's measured range
    queued_on: int | None = None
    attempt: int = 0
    awaiting: int | None = None  # the worker that may be leaving a pin whose handle has not arrived
    left: bool = False  # nobody reads its tokens any more: it was told to finish
    rest: Coroutine[Any, Any, None] | None = None  # what remains to be done when it was dropped while it could finish
    prefill_failed: str | None = None
    prefilled: PrefillResult | None = None
    stats: RoundStats | None = None
    generated: list[int] = field(default_factory=list)  # of the first choice
    tokens_out: int = 0  # of all choices

    @property
    def session(self) -> str:
        """What workers and queues call the round's session; a round without one is a session of its own."""
        return self.key.id if self.key is not None else f"single-{self.id}"

    @property
    def leg(self) -> str:
        """The id of this attempt at workers and queues."""
        return self.id if self.attempt == 0 else f"{self.id}-{self.attempt}"

    @property
    def keep(self) -> bool:
        """Whether the decode worker should keep the KV for a next round."""
        return self.row is not None and not self.ask.final and self.ask.choices == 1

    @property
    def can_finish(self) -> bool:
        """Whether ending its decoding now, rather than stopping it, leaves KV for a next round."""
        return self.phase is Phase.STREAMING and self.stats is None and self.keep

    @property
    def l_incr(self) -> int:
        """Prompt tokens to compute."""
        return len(self.ask.token_ids) - self.history.l_hist
