"""Finding a session that the state store has lost, or knows only as it was: its decode worker still has its pin."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import msgspec

from ampd.coordinator.workers import Workers
from ampd.errors import StateError, WorkerError
from ampd.messages import KvReply, KvRequest
from ampd.state.base import Opened, StateStore

log = logging.getLogger(__name__)

_WAIT_S = 0.5


class SessionSearch:
    """Asks decode workers for a session, when an opening is unsure (invariants 2 and 5 of the design).

    Coordinators hold copies only of the sessions that they served. Without this, a session that another one served would be bound
    anew for as long as the store is away, and its history computed again.
    """

    def __init__(self, store: StateStore, workers: Workers) -> None:
        self._store, self._workers = store, workers

    async def complete(self, session: str, opened: Opened) -> Opened:
        """`opened` with what the workers know of the session's binding, handle and ledger; as it is when they know no more."""
        row = opened.session
        asked = [w.id for w in opened.view.decode if row is None or (w.id == row.worker and w.epoch == row.epoch)]
        found = await self._find(session, asked)
        if found is None or (handle := found.handle) is None:
            return opened
        if row is None:
            try:
                row = await self._store.bind(session, handle.worker, handle.epoch, 0)
            except StateError as e:
                log.warning("session %s, found on worker %d, could not be bound to it: %s", session, handle.worker, e)
                return opened
            if row.epoch != handle.epoch:  # bound elsewhere meanwhile: that one holds
                return opened
        row = msgspec.structs.replace(row, round=max(1, row.round), tokens=handle.tokens, handle=handle)
        return msgspec.structs.replace(opened, session=row, ledger=found.ledger)

    async def _find(self, session: str, workers: Sequence[int]) -> KvReply | None:
        """The latest pin that one of the workers has of the session."""
        replies = await asyncio.gather(*(self._ask(worker, session) for worker in workers))
        found = [r for r in replies if r is not None and r.handle is not None and r.handle.session == session]
        return max(found, key=lambda r: r.handle.expires_at if r.handle is not None else 0.0, default=None)

    async def _ask(self, worker: int, session: str) -> KvReply | None:
        try:
            async with asyncio.timeout(_WAIT_S):
                return await self._workers.kv(worker, KvRequest(op="find", session=session))
        except (WorkerError, TimeoutError):
            return None
