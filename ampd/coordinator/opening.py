"""Steps 1 to 3 of a round: open it, bind its session, measure its history."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Sequence

import msgspec

from ampd.coordinator.custody import Custody
from ampd.coordinator.keys import SessionKey
from ampd.coordinator.quarantine import Quarantine
from ampd.coordinator.request import Ask
from ampd.coordinator.round import History, Round
from ampd.errors import NoWorkers, StateError, WorkerGone
from ampd.ledger import DIGEST_SIZE, matching_tokens
from ampd.messages import Handle
from ampd.policy.binding import choose_decode
from ampd.policy.types import ClusterView, WorkerView
from ampd.state.base import Opened, SessionRow, StateStore

log = logging.getLogger(__name__)


class Opening:
    """Opens rounds."""

    def __init__(self, store: StateStore, quarantine: Quarantine, block_size: int, wall: Callable[[], float] = time.time) -> None:
        self._store, self._quarantine, self._block_size, self._wall = store, quarantine, block_size, wall

    async def open(self, ask: Ask, key: SessionKey | None, arrived_at: float) -> Round:
        """Open a round: one trip to the store, a second one when the session is bound in it.

        Raises StateError, or NoWorkers when no decode worker can take it: no handle is lost then, it goes back to the session.
        """
        opened = await self._store.open_round(key.id) if key is not None else Opened(None, b"", await self._store.view())
        view = self._quarantine.healthy(opened.view)
        row = opened.session
        number = row.round + 1 if row is not None else 1
        try:
            if key is None:
                bound, rebound, row = choose_decode(view, ask.room), None, None
            else:
                row, bound, view, rebound = await self._bind(key, row, view, ask)
        except (NoWorkers, WorkerGone):
            await self._give_back(key, opened.session)
            raise
        handle = opened.session.handle if opened.session is not None else None
        custody = Custody(handle if handle is not None and handle.epoch == bound.epoch else None)
        if custody.history is None:
            custody.disown(handle)
        if row is not None and row is not opened.session:
            custody.disown(row.handle)
        return Round(
            id=uuid.uuid4().hex,
            ask=ask,
            key=key,
            arrived_at=arrived_at,
            number=number,
            view=view,
            row=row,
            ledger=opened.ledger,
            bound=bound,
            history=measure(opened.ledger, ask.token_ids, handle if self._usable(handle, bound) else None, self._block_size),
            custody=custody,
            degraded=opened.degraded,
            rebound=rebound,
        )

    async def rebind(self, round: Round, cause: str) -> None:
        """Move a round, whose decode worker has just failed, and its session to another one. Raises NoWorkers."""
        round.view = self._quarantine.healthy(round.view)
        if round.key is None or round.row is None:
            round.bound = choose_decode(round.view, round.ask.room)
        else:
            round.row, round.bound, round.view, _ = await self._bind(round.key, round.row, round.view, round.ask)
            round.custody.disown(round.row.handle if round.row is not None else None)
        round.rebound = cause
        round.history = measure(round.ledger, round.ask.token_ids, None, self._block_size)

    async def _bind(
        self, key: SessionKey, row: SessionRow | None, view: ClusterView, ask: Ask
    ) -> tuple[SessionRow | None, WorkerView, ClusterView, str | None]:
        """The binding that holds, its worker, the view that shows it, and why it changed if it did."""
        bound = view.find(row.worker) if row is not None else None
        cause = None
        if row is not None:
            if bound is not None and bound.epoch == row.epoch and not self._should_leave(bound, view):
                return row, bound, view, None
            cause = "draining" if bound is not None and bound.epoch == row.epoch else "worker_gone"
        chosen = choose_decode(view, ask.room)
        try:
            held = await self._store.bind(key.id, chosen.id, chosen.epoch, ask.room, replace=row.epoch if row is not None else None)
        except StateError as e:
            log.warning("session %s could not be bound, its round is served without: %s", key.id, e)
            return None, chosen, view, cause
        if held.worker != chosen.id:  # another Coordinator bound it first
            chosen, view = await self._found(held, view)
        return msgspec.structs.replace(held, derived=key.derived), chosen, view, cause

    async def _found(self, row: SessionRow, view: ClusterView) -> tuple[WorkerView, ClusterView]:
        """The worker of a binding that another Coordinator made, perhaps to one that this view does not show yet."""
        if (found := view.find(row.worker)) is None:
            view = await self._store.view()
            found = view.find(row.worker)
        if found is None:
            raise WorkerGone(f"decode worker {row.worker}, to which the session has just been bound, is not live")
        return found, view

    def _should_leave(self, bound: WorkerView, view: ClusterView) -> bool:
        return bound.draining and any(not worker.draining for worker in view.decode)

    async def _give_back(self, key: SessionKey | None, row: SessionRow | None) -> None:
        if key is not None and row is not None and row.handle is not None:
            try:
                await self._store.close_round(key.id, row, None)
            except StateError as e:
                log.warning("history of session %s not given back, it ends by itself: %s", key.id, e)

    def _usable(self, handle: Handle | None, bound: WorkerView) -> bool:
        return handle is not None and handle.worker == bound.id and handle.epoch == bound.epoch and handle.expires_at > self._wall()


def measure(ledger: bytes, token_ids: Sequence[int], handle: Handle | None, block_size: int) -> History:
    """How much of a prompt is the session's, and how much of that KV is still held."""
    matched = matching_tokens(ledger, token_ids, block_size)
    held = min(matched, handle.tokens // block_size * block_size) if handle is not None else 0
    if held == len(token_ids):
        held -= block_size  # something must be computed to sample from
    return History(matched, max(0, held), rewritten=matched < len(ledger) // DIGEST_SIZE * block_size)
