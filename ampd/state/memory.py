"""The shared state of a graph that runs in one process; also what a Redis outage is bridged with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from ampd.messages import Handle
from ampd.policy.types import ClusterView
from ampd.state.base import Opened, QueueEntry, Sample, SessionRow, WorkerRow
from ampd.state.rows import Bucket, Stats, build_view, fold, fresh
from ampd.state.settings import StoreSettings


@dataclass(slots=True)
class _Worker:
    row: WorkerRow
    stats: Stats
    buckets: list[Bucket] = field(default_factory=list)
    queue: dict[str, QueueEntry] = field(default_factory=dict)


@dataclass(slots=True)
class _Session:
    row: SessionRow
    expires_at: float
    closed: int = -1  # the version of the last round that closed
    ledger: bytes = b""


class MemoryStore:
    """A StateStore in this process's memory. `clock` gives seconds; nothing here ever waits, so every method is atomic."""

    def __init__(self, settings: StoreSettings | None = None, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings or StoreSettings()
        self._clock = clock
        self._workers: dict[int, _Worker] = {}
        self._sessions: dict[str, _Session] = {}

    async def connect(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to give back."""

    async def put_worker(self, row: WorkerRow) -> None:
        now = self._clock()
        known = self._workers.get(row.id)
        if known is None or known.row.epoch != row.epoch:
            self._workers[row.id] = _Worker(row, Stats(now))
            return
        known.row = row
        stats = known.stats
        stats.at, stats.promised_before, stats.promised = now, stats.promised, 0
        self._fold(known, now)

    async def remove_worker(self, worker: int) -> None:
        self._workers.pop(worker, None)

    async def view(self) -> ClusterView:
        now = self._clock()
        for worker, known in list(self._workers.items()):
            if now - known.stats.at > self._settings.reap_after_s:
                del self._workers[worker]
        return build_view(((w.row, w.stats) for w in self._workers.values()), now, self._settings.stale_after_s)

    async def open_round(self, session: str) -> Opened:
        view = await self.view()
        known = self._live(session)
        if known is None:
            return Opened(None, b"", view)
        self._touch(known)
        opened = known.row
        known.row = msgspec.structs.replace(opened, handle=None)
        return Opened(msgspec.structs.replace(opened, version=known.row.version), known.ledger, view)

    async def bind(self, session: str, worker: int, epoch: str, tokens: int, *, replace: str | None = None) -> SessionRow:
        known = self._live(session)
        if known is None:
            known = self._sessions[session] = _Session(SessionRow(worker=worker, epoch=epoch), 0.0)
            self._promise(worker, tokens)
        elif known.row.epoch == replace:
            known.row = SessionRow(worker=worker, epoch=epoch, round=known.row.round, version=known.row.version)
            known.ledger = b""
            self._promise(worker, tokens)
        self._touch(known)
        return msgspec.structs.replace(known.row, handle=None)

    async def close_round(self, session: str, row: SessionRow, ledger: bytes | None) -> Handle | None:
        known = self._live(session)
        if known is None or known.row.epoch != row.epoch or row.version < known.closed:
            return row.handle
        if row.version == known.closed:
            return None
        old = known.row.handle
        keep = row.handle is None and ledger is None
        known.row = msgspec.structs.replace(
            row, worker=known.row.worker, version=known.row.version, handle=old if keep else row.handle
        )
        known.closed = row.version
        if ledger is not None:
            known.ledger = ledger
        known.expires_at = self._clock() + self._settings.idle_ttl_s
        return None if keep else old

    async def end_session(self, session: str) -> SessionRow | None:
        known = self._live(session)
        self._sessions.pop(session, None)
        return None if known is None else known.row

    async def enqueue(self, worker: int, entry: QueueEntry) -> None:
        known = self._workers.get(worker)
        if known is not None and entry.id not in known.queue:
            known.queue[entry.id] = entry
            known.stats.tasks += 1
            known.stats.queued_s += entry.cost_s

    async def dequeue(self, worker: int, task: str, postponed: Sequence[str] = ()) -> None:
        known = self._workers.get(worker)
        entry = None if known is None else known.queue.pop(task, None)
        if known is None or entry is None:
            return
        known.stats.tasks -= 1
        known.stats.queued_s = max(0.0, known.stats.queued_s - entry.cost_s) if known.queue else 0.0
        for other in postponed:
            if other in known.queue:
                late = known.queue[other]
                known.queue[other] = msgspec.structs.replace(late, postponed=late.postponed + 1)

    async def queue(self, worker: int) -> list[QueueEntry]:
        known = self._workers.get(worker)
        return [] if known is None else list(known.queue.values())

    async def observe(self, samples: Sequence[Sample]) -> None:
        now = self._clock()
        for sample in samples:
            known = self._workers.get(sample.worker)
            if known is None:
                continue
            if not known.buckets or known.buckets[-1].second != int(now):
                known.buckets.append(Bucket(int(now)))
            bucket = known.buckets[-1]
            if sample.kind == "ttft":
                bucket.ttft_sum += sample.total
                bucket.ttft_count += sample.count
            else:
                bucket.itl_sum += sample.total
                bucket.itl_count += sample.count
            self._fold(known, now)

    async def sessions(self) -> int:
        return sum(self._live(session) is not None for session in list(self._sessions))

    def _fold(self, worker: _Worker, now: float) -> None:
        worker.buckets = fresh(worker.buckets, now, self._settings.window_s)
        fold(worker.stats, worker.buckets)

    def _live(self, session: str) -> _Session | None:
        known = self._sessions.get(session)
        if known is not None and known.expires_at <= self._clock():
            del self._sessions[session]
            return None
        return known

    def _touch(self, session: _Session) -> None:
        """A new opening: its own version, and a full idle time."""
        session.row = msgspec.structs.replace(session.row, version=session.row.version + 1)
        session.expires_at = self._clock() + self._settings.idle_ttl_s

    def _promise(self, worker: int, tokens: int) -> None:
        known = self._workers.get(worker)
        if known is not None:
            known.stats.promised += tokens
