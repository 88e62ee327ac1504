"""The StateStore in Redis 6.2 or newer. Keys, fields and costs: docs/state.md."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any

import msgspec

from ampd.errors import SetupError, StateError
from ampd.messages import Handle
from ampd.policy.types import ClusterView
from ampd.state.base import SCHEMA, Held, Opened, QueueEntry, Sample, SessionRow, WorkerRow
from ampd.state.client import RedisClient, Use
from ampd.state.rows import Stats, build_view
from ampd.state.settings import StoreSettings

log = logging.getLogger(__name__)

_pack = msgspec.msgpack.Encoder().encode
_row = msgspec.msgpack.Decoder(WorkerRow).decode
_stats = msgspec.msgpack.Decoder(Stats).decode
_handle = msgspec.msgpack.Decoder(Handle).decode
_helds = msgspec.msgpack.Decoder(tuple[Held, ...]).decode
_queued = msgspec.msgpack.Decoder(tuple[float, QueueEntry]).decode


class RedisStore:
    """Every call is one script, so atomic, and one round trip; every time is Redis time."""

    def __init__(self, url: str, password: str | None, graph: str, settings: StoreSettings | None = None) -> None:
        """Raises ConfigError on a URL of another kind than redis://, rediss:// or unix://."""
        self._settings = settings or StoreSettings()
        self._client = RedisClient(url, password, self._settings.deadline_s, self._settings.max_pending)
        self._graph = graph
        self._prefix = f"{{ampd:{graph}}}"
        self._load = f"{self._prefix}:load"
        self._idle_ms = max(1, round(self._settings.idle_ttl_s * 1000))
        self._incarnation: str | None = None
        self._background: dict[object, asyncio.Task[None]] = {}

    async def connect(self) -> bool:
        found = await self._client.connect(f"{self._prefix}:schema", f"{SCHEMA} {uuid.uuid4().hex}")
        schema = found.partition(" ")[0]
        if schema != str(SCHEMA):
            raise SetupError(
                f"state.url {self._client.where}: graph {self._graph!r} holds state of schema {schema}, this ampd speaks {SCHEMA}; "
                f"delete the keys {self._prefix}:* when the other has stopped, or rename the graph"
            )
        lost = self._incarnation not in (None, found)
        self._incarnation = found
        return lost

    async def close(self) -> None:
        if self._background:
            await asyncio.wait(self._background.values(), timeout=2 * self._settings.deadline_s)
        await self._client.close()

    async def put_worker(self, row: WorkerRow) -> None:
        keys = (self._load, self._window_key(row.id), self._queue_key(row.id))
        await self._client.run(Use.REPORT, "put_worker", keys, (row.id, _pack(row), row.epoch, self._settings.window_s))

    async def report(
        self, row: WorkerRow, departures: Sequence[tuple[str, Sequence[str]]] = (), samples: Sequence[Sample] = ()
    ) -> None:
        for task, postponed in departures:
            await self.dequeue(row.id, task, postponed)
        await self.observe(samples)
        await self.put_worker(row)

    async def remove_worker(self, worker: int) -> None:
        await self._remove(worker, "")

    async def _remove(self, worker: int, silent_s: float | str) -> None:
        keys = (self._load, self._window_key(worker), self._queue_key(worker))
        await self._client.run(Use.REPORT, "remove_worker", keys, (worker, silent_s))

    async def view(self) -> ClusterView:
        return self._view(*await self._client.run(Use.DECISION, "view", (self._load,), ()))

    def _view(self, time: Sequence[bytes], flat: Sequence[bytes]) -> ClusterView:
        now = int(time[0]) + int(time[1]) / 1e6
        fields = dict(zip(flat[::2], flat[1::2], strict=True))
        workers = []
        for field, packed in fields.items():
            stats = fields.get(field + b":s")
            if stats is None:
                continue
            try:
                row, known = _row(packed), _stats(stats)
            except msgspec.DecodeError as e:
                log.warning("worker row %s is not understood and is left out: %s", field.decode(errors="replace"), e)
                continue
            workers.append((row, known))
            if now - known.at > self._settings.reap_after_s:
                self._in_background(row.id, self._remove(row.id, self._settings.reap_after_s))
        return build_view(workers, now, self._settings.stale_after_s)

    async def open_round(self, session: str) -> Opened:
        keys = (self._load, self._session_key(session))
        time, load, fields = await self._client.run(
            Use.DECISION, "open_round", keys, (self._idle_ms,), late=lambda r: self._give_back(session, r)
        )
        known = _fields(fields)
        return Opened(_session(known), known.get(b"ledger", b""), self._view(time, load))

    def _give_back(self, session: str, reply: Sequence[Any]) -> None:
        """An opening that nobody waited for took the handle: put it back."""
        row = _session(_fields(reply[2]))
        if row is not None and row.handle is not None:
            self._in_background(row.handle.ref, self._restore(session, row))

    async def _restore(self, session: str, row: SessionRow) -> None:
        await self.close_round(session, row, None)

    async def bind(
        self, session: str, worker: int, epoch: str, tokens: int, *, replace: str | None = None, version: int = 0
    ) -> SessionRow:
        keys = (self._load, self._session_key(session))
        return _bound(
            await self._client.run(Use.CHANGE, "bind", keys, (worker, epoch, tokens, replace or "", self._idle_ms, version))
        )

    async def restore(self, session: str, row: SessionRow, ledger: bytes, closed: int) -> SessionRow:
        handle = b"" if row.handle is None else _pack(row.handle)
        known = (
            row.worker,
            row.epoch,
            row.version,
            closed,
            row.round,
            row.tokens,
            int(row.derived),
            handle,
            ledger,
            self._idle_ms,
            _held(row),
        )
        return _bound(await self._client.run(Use.REPORT, "restore", (self._session_key(session),), known))

    async def close_round(self, session: str, row: SessionRow, ledger: bytes | None) -> Handle | None:
        handle = b"" if row.handle is None else _pack(row.handle)
        has_ledger = 0 if ledger is None else 1
        fields = (
            row.epoch,
            row.version,
            row.round,
            row.tokens,
            int(row.derived),
            handle,
            ledger or b"",
            has_ledger,
            self._idle_ms,
            _held(row),
        )
        unused = await self._client.run(Use.CHANGE, "close_round", (self._session_key(session),), fields)
        return None if unused is None else _handle(unused)

    async def end_session(self, session: str) -> SessionRow | None:
        return _session(_fields(await self._client.run(Use.CHANGE, "end_session", (self._session_key(session),), ())))

    async def enqueue(self, worker: int, entry: QueueEntry) -> None:
        await self._client.run(
            Use.CHANGE, "enqueue", (self._load, self._queue_key(worker)), (worker, entry.id, _pack(entry), entry.cost_s)
        )

    def enqueue_soon(self, worker: int, entry: QueueEntry) -> None:
        self._in_background(entry.id, self.enqueue(worker, entry))

    async def dequeue(self, worker: int, task: str, postponed: Sequence[str] = ()) -> None:
        await self._client.run(Use.REPORT, "dequeue", (self._load, self._queue_key(worker)), (worker, task, *postponed))

    async def queue(self, worker: int) -> list[QueueEntry]:
        items = [_queued(value) for value in await self._client.command(Use.REPORT, "HVALS", self._queue_key(worker))]
        return [entry for _, entry in sorted(items, key=lambda item: item[0])]

    async def observe(self, samples: Sequence[Sample]) -> None:
        if samples:
            keys = [self._load, *(self._window_key(s.worker) for s in samples)]
            values = [value for s in samples for value in (s.worker, s.kind, s.total, s.count)]
            await self._client.run(Use.REPORT, "observe", keys, (self._settings.window_s, *values))

    async def sessions(self) -> int:
        found: set[bytes] = set()
        cursor = b"0"
        while True:
            cursor, keys = await self._client.command(Use.REPORT, "SCAN", cursor, "MATCH", self._session_key("*"), "COUNT", 1000)
            found.update(keys)
            if int(cursor) == 0:
                return len(found)

    def _in_background(self, key: object, call: Coroutine[Any, Any, None]) -> None:
        """Run an errand that no request waits for, one of a kind at a time; a failed one is tried again when next noticed."""
        if key in self._background:
            call.close()
            return

        async def errand() -> None:
            try:
                await call
            except StateError as e:
                log.warning("state clean-up failed: %s", e)
            finally:
                del self._background[key]

        self._background[key] = asyncio.create_task(errand())

    def _session_key(self, session: str) -> str:
        return f"{self._prefix}:session:{session}"

    def _queue_key(self, worker: int) -> str:
        return f"{self._prefix}:queue:{worker}"

    def _window_key(self, worker: int) -> str:
        return f"{self._prefix}:window:{worker}"


def _held(row: SessionRow) -> bytes:
    return _pack(row.held) if row.held else b""


def _fields(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _bound(values: Sequence[bytes | None]) -> SessionRow:
    """The row of a session that is there for certain."""
    names = (b"worker", b"epoch", b"round", b"version", b"tokens", b"derived", b"held", b"handle")
    row = _session({name: value for name, value in zip(names, values, strict=False) if value is not None})
    assert row is not None
    return row


def _session(fields: dict[bytes, bytes]) -> SessionRow | None:
    if b"worker" not in fields:
        return None
    packed = fields.get(b"handle")
    return SessionRow(
        worker=int(fields[b"worker"]),
        epoch=fields[b"epoch"].decode(),
        round=int(fields.get(b"round", 0)),
        version=int(fields.get(b"version", 0)),
        tokens=int(fields.get(b"tokens", 0)),
        handle=None if packed is None else _handle(packed),
        derived=fields.get(b"derived") == b"1",
        held=_helds(fields.get(b"held", b"\x90")),
    )
