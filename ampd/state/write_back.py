"""What a process must tell a store that was away, or that has lost what it held."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from itertools import islice

from ampd.errors import StateError
from ampd.state.base import StateStore, WorkerRow
from ampd.state.session_table import SessionTable

_JOURNAL = 10_000
_AT_ONCE = 64  # sessions written back side by side: enough to hide the round trip, too few to fill a connection


class WriteBack:
    """Collects changes while the store is away. `copies` is what this process knows of its sessions."""

    def __init__(self, copies: SessionTable) -> None:
        self.rows: dict[int, WorkerRow] = {}  # the last of each worker that reports through this process
        self.sessions: set[str] = set()  # those that may differ from the store's
        self._copies = copies
        self._departed: deque[tuple[int, str, Sequence[str]]] = deque(maxlen=_JOURNAL)

    def departed(self, worker: int, task: str, postponed: Sequence[str]) -> None:
        """A task left its queue."""
        self._departed.append((worker, task, postponed))

    async def run(self, store: StateStore) -> None:
        """Write everything back, until nothing is left that changed meanwhile. Raises StateError; called again, it goes on."""
        for row in list(self.rows.values()):
            await store.put_worker(row)
        while self._departed:
            await store.dequeue(*self._departed[0])
            self._departed.popleft()
        while self.sessions:
            batch = list(islice(self.sessions, _AT_ONCE))
            outcomes = await asyncio.gather(*(self._session(store, session) for session in batch), return_exceptions=True)
            for outcome in outcomes:
                if outcome is not None:
                    raise outcome

    async def _session(self, store: StateStore, session: str) -> None:
        self.sessions.discard(session)
        known = self._copies.get(session)
        try:
            if known is None:
                await store.end_session(session)
                return
            row = known.row
            stands = await store.restore(session, row, known.ledger, known.closed)
        except StateError:
            self.sessions.add(session)
            raise
        if stands.epoch != row.epoch:
            self._copies.adopt(session, stands, b"")
