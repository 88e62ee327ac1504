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
        self._copies = copies
        self._sessions: dict[str, bool] = {}  # those that may differ from the store's; True: to be ended there
        self._departed: deque[tuple[int, str, Sequence[str]]] = deque(maxlen=_JOURNAL)

    def departed(self, worker: int, task: str, postponed: Sequence[str]) -> None:
        """A task left its queue."""
        self._departed.append((worker, task, postponed))

    def changed(self, *sessions: str) -> None:
        """Sessions may differ from the store's."""
        self._sessions.update(dict.fromkeys(sessions, False))

    def ended(self, session: str) -> None:
        """A session was ended. One that is merely not known here is left alone: others may know it."""
        self._sessions[session] = True

    async def run(self, store: StateStore) -> None:
        """Write everything back, until nothing is left that changed meanwhile. Raises StateError; called again, it goes on."""
        for row in list(self.rows.values()):
            await store.put_worker(row)
        while self._departed:
            await store.dequeue(*self._departed[0])
            self._departed.popleft()
        while self._sessions:
            batch = list(islice(self._sessions, _AT_ONCE))
            outcomes = await asyncio.gather(*(self._session(store, session) for session in batch), return_exceptions=True)
            for outcome in outcomes:
                if outcome is not None:
                    raise outcome

    async def _session(self, store: StateStore, session: str) -> None:
        end = self._sessions.pop(session)
        known = self._copies.get(session)
        try:
            if end:
                await store.end_session(session)
            elif known is not None:
                row = known.row
                stands = await store.restore(session, row, known.ledger, known.closed)
                if stands.epoch != row.epoch:
                    self._copies.adopt(session, stands, b"")
        except StateError:
            self._sessions.setdefault(session, end)
            raise
