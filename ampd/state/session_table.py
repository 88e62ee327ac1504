"""Sessions in this process's memory: the rules of `StateStore` about bindings, openings and handles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace as changed

from ampd.messages import Handle
from ampd.state.base import SessionRow


@dataclass(slots=True)
class StoredSession:
    """A session as it is kept: `row.version` is the last opening's, `closed` that of the last opening that closed."""

    row: SessionRow
    ledger: bytes = b""
    closed: int = -1
    expires_at: float = 0.0


class SessionTable:
    """Sessions by key, in the order of their last use; those idle for `idle_ttl_s` seconds are dropped. `clock` is unix time."""

    def __init__(self, idle_ttl_s: float, clock: Callable[[], float]) -> None:
        self._idle_ttl_s = idle_ttl_s
        self._clock = clock
        self._sessions: dict[str, StoredSession] = {}
        self._look_at = 0.0  # none expires before

    def __len__(self) -> int:
        self._expire()
        return len(self._sessions)

    def keys(self) -> list[str]:
        self._expire()
        return list(self._sessions)

    def get(self, session: str) -> StoredSession | None:
        self._expire()
        return self._sessions.get(session)

    def open(self, session: str) -> tuple[SessionRow | None, bytes]:
        """The session and its ledger; the handle goes to this caller alone, the version numbers this opening.

        The number is at least the time, so that of two stores' openings the later one is the higher.
        """
        known = self.get(session)
        if known is None:
            return None, b""
        opened = changed(known.row, version=max(known.row.version + 1, int(self._clock() * 1e6)))
        known.row = changed(opened, handle=None)
        self._use(session, known)
        return opened, known.ledger

    def bind(self, session: str, worker: int, epoch: str, replace: str | None, version: int) -> tuple[SessionRow, bool]:
        """The binding that stands (with a handle only if it displaced that), and whether it is a new one.

        Versions of a new session start at the time, above all those of an ended session of that name: its late closes lose.
        """
        known = self.get(session)
        new = known is None or known.row.epoch == replace
        displaced = None
        if known is None:
            start = max(int(self._clock() * 1e6), version)
            known = StoredSession(SessionRow(worker=worker, epoch=epoch, version=start), closed=start)
        elif new:
            displaced = known.row.handle
            old = known.row
            known.row = SessionRow(worker=worker, epoch=epoch, round=old.round, version=old.version, held=old.held)
            known.ledger = b""
        known.row = changed(known.row, version=max(known.row.version, version) + 1)
        self._use(session, known)
        return changed(known.row, handle=displaced), new

    def restore(self, session: str, row: SessionRow, ledger: bytes, closed: int) -> SessionRow:
        """Put back a session that was lost. Returns the binding that stands."""
        known = self.get(session) or StoredSession(changed(row, handle=None))
        if known.row.epoch == row.epoch:
            version = max(known.row.version, row.version)
            if closed > known.closed:
                known.row, known.ledger, known.closed = row, ledger, closed
            known.row = changed(known.row, version=version)
            self._use(session, known)
        return changed(known.row, handle=None)

    def close(self, session: str, row: SessionRow, ledger: bytes | None) -> Handle | None:
        """Store a round's end. Returns the handle that nobody will use."""
        known = self.get(session)
        if known is None or known.row.epoch != row.epoch or row.version < known.closed:
            return row.handle
        if row.version == known.closed:
            return None
        old = known.row.handle
        keep = row.handle is None and ledger is None
        known.row = changed(
            row,
            worker=known.row.worker,
            version=max(known.row.version, row.version),
            handle=old if keep else row.handle,
            held=row.held or known.row.held,
        )
        known.closed = row.version
        if ledger is not None:
            known.ledger = ledger
        self._use(session, known)
        return None if keep else old

    def end(self, session: str) -> SessionRow | None:
        """Forget the session. Returns its last row."""
        known = self.get(session)
        self._sessions.pop(session, None)
        return None if known is None else known.row

    def adopt(self, session: str, row: SessionRow, ledger: bytes | None) -> None:
        """Take over what another store says, as opened by `row.version`; None leaves the ledger."""
        known = self.get(session) or StoredSession(row)
        same = known.row.epoch == row.epoch
        known.ledger = ledger if ledger is not None else known.ledger if same else b""
        known.closed = max(known.closed, row.version - 1) if same else row.version - 1
        known.row = row
        self._use(session, known)

    def learn(self, session: str, row: SessionRow) -> None:
        """Another process bound a session: remember where, unless more is known."""
        known = self.get(session)
        if known is None or (known.row.epoch != row.epoch and known.row.version < row.version):
            self.adopt(session, row, b"")

    def _use(self, session: str, known: StoredSession) -> None:
        self._sessions.pop(session, None)
        known.expires_at = self._clock() + self._idle_ttl_s
        self._sessions[session] = known

    def _expire(self) -> None:
        """All idle times are equal, so the least recently used expires first."""
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + self._idle_ttl_s
        while self._sessions:
            session = next(iter(self._sessions))
            if self._sessions[session].expires_at > now:
                self._look_at = self._sessions[session].expires_at
                return
            del self._sessions[session]
