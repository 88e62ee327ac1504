"""The shared state of a graph that runs in one process; also what a Redis outage is bridged with."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from ampd.messages import Handle
from ampd.policy.types import ClusterView, WorkerView
from ampd.state.base import SCHEMA, Opened, QueueEntry, Sample, SessionRow, WorkerRow
from ampd.state.rows import Bucket, Stats, fold, fresh, worker_view
from ampd.state.session_table import SessionTable
from ampd.state.settings import StoreSettings


@dataclass(slots=True)
class _Worker:
    row: WorkerRow
    stats: Stats
    buckets: list[Bucket] = field(default_factory=list)
    queue: dict[str, QueueEntry] = field(default_factory=dict)


class MemoryStore:
    """A StateStore in this process's memory. `clock` gives seconds; nothing here ever waits, so every method is atomic."""

    def __init__(self, settings: StoreSettings | None = None, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings or StoreSettings()
        self._clock = clock
        self._workers: dict[int, _Worker] = {}
        self._sessions = SessionTable(self._settings.idle_ttl_s, clock)

    async def connect(self) -> bool:
        return False

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

    async def report(
        self, row: WorkerRow, departures: Sequence[tuple[str, Sequence[str]]] = (), samples: Sequence[Sample] = ()
    ) -> None:
        for task, postponed in departures:
            await self.dequeue(row.id, task, postponed)
        await self.observe(samples)
        await self.put_worker(row)

    async def remove_worker(self, worker: int) -> None:
        self._workers.pop(worker, None)

    async def view(self) -> ClusterView:
        now = self._clock()
        for worker, known in list(self._workers.items()):
            if now - known.stats.at > self._settings.reap_after_s:
                del self._workers[worker]
        prefill: list[WorkerView] = []
        decode: list[WorkerView] = []
        for known in self._workers.values():
            if now - known.stats.at <= self._settings.stale_after_s and known.row.schema == SCHEMA:
                (prefill if known.row.role == "prefill" else decode).append(worker_view(known.row, known.stats))
        return ClusterView(prefill, decode)

    async def open_round(self, session: str, known: bytes = b"") -> Opened:
        row, ledger = self._sessions.open(session)
        return Opened(row, ledger, await self.view())

    async def bind(
        self, session: str, worker: int, epoch: str, tokens: int, *, replace: str | None = None, version: int = 0
    ) -> SessionRow:
        row, new = self._sessions.bind(session, worker, epoch, replace, version)
        known = self._workers.get(worker)
        if new and known is not None:
            known.stats.promised += tokens
        return row

    async def restore(self, session: str, row: SessionRow, ledger: bytes, closed: int) -> SessionRow:
        return self._sessions.restore(session, row, ledger, closed)

    async def close_round(self, session: str, row: SessionRow, ledger: bytes | None) -> Handle | None:
        return self._sessions.close(session, row, ledger)

    async def end_session(self, session: str) -> SessionRow | None:
        return self._sessions.end(session)

    async def enqueue(self, worker: int, entry: QueueEntry) -> None:
        self.enqueue_soon(worker, entry)

    def enqueue_soon(self, worker: int, entry: QueueEntry) -> None:
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
        return len(self._sessions)

    def _fold(self, worker: _Worker, now: float) -> None:
        worker.buckets = fresh(worker.buckets, now, self._settings.window_s)
        fold(worker.stats, worker.buckets)
