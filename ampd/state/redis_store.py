"""The StateStore in Redis 6.2 or newer. Keys, fields and costs: docs/state.md."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec

from ampd.errors import SetupError, StateError
from ampd.messages import Handle
from ampd.policy.types import ClusterView
from ampd.state.base import SCHEMA, Opened, QueueEntry, Sample, SessionRow, WorkerRow
from ampd.state.client import Call, RedisClient, Use
from ampd.state.connection import Arg
from ampd.state.live_view import LiveView
from ampd.state.session_fields import (
    pack,
    pack_handle,
    pack_held,
    read_binding,
    read_bound,
    read_session,
    stream_id,
    tail_of,
    unpack_handle,
)
from ampd.state.settings import StoreSettings

log = logging.getLogger(__name__)

_queued = msgspec.msgpack.Decoder(tuple[float, QueueEntry]).decode


class RedisStore:
    """Every call is one script, so atomic, and one round trip; every time is Redis time."""

    def __init__(self, url: str, password: str | None, graph: str, settings: StoreSettings | None = None) -> None:
        """Raises ConfigError on a URL of another kind than redis://, rediss:// or unix://."""
        self._settings = settings or StoreSettings()
        self._client = RedisClient(url, password, self._settings.deadline_s, self._settings.max_pending)
        self._graph = graph
        self._prefix = f"{{ampd:{graph}}}"
        self._load, self._changes, self._bindings = (f"{self._prefix}:{name}" for name in ("load", "changes", "bindings"))
        self._last_binding = b"0-0"
        self._live = LiveView(self._settings.stale_after_s, self._settings.reap_after_s)
        self._idle_ms = max(1, round(self._settings.idle_ttl_s * 1000))
        self._incarnation: str | None = None
        self._background: dict[object, asyncio.Task[None]] = {}
        shared = (self._load, self._changes, self._bindings)
        self._opening = self._client.template("open_round", shared, own_keys=1, own_args=4, args=(self._idle_ms,))

    async def connect(self) -> bool:
        first = self._incarnation is None
        found = await self._client.connect(f"{self._prefix}:schema", f"{SCHEMA} {uuid.uuid4().hex}", load=first)
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
        await self._client.run(Use.REPORT, *self._heartbeat(row))

    async def report(
        self, row: WorkerRow, departures: Sequence[tuple[str, Sequence[str]]] = (), samples: Sequence[Sample] = ()
    ) -> None:
        calls = [self._departures(row.id, departures)] if departures else []
        if samples:
            calls.append(self._samples(samples))
        await self._client.run_all(Use.REPORT, [*calls, self._heartbeat(row)])

    async def remove_worker(self, worker: int) -> None:
        await self._remove(worker, "")

    async def view(self) -> ClusterView:
        live = self._live
        reply = await self._client.run(Use.DECISION, "view", (self._load, self._changes), (live.generation, live.seq))
        return self._take(reply)

    def _take(self, reply: Sequence[Any]) -> ClusterView:
        view = self._live.update(reply)
        for worker in self._live.dead():
            self._in_background(worker, self._reap(worker))
        return view

    async def _reap(self, worker: int) -> None:
        if await self._remove(worker, self._settings.reap_after_s):
            log.warning("worker %d has been silent for %.0f s and is forgotten", worker, self._settings.reap_after_s)

    async def _remove(self, worker: int, silent_s: float | str) -> bool:
        keys = (self._load, self._changes, self._window_key(worker), self._queue_key(worker))
        return bool(await self._client.run(Use.REPORT, "remove_worker", keys, (worker, silent_s)))

    async def open_round(self, session: str, known: bytes = b"") -> Opened:
        live, late = self._live, partial(self._give_back, session)
        asked = (self._session_key(session).encode(), live.generation, live.seq, tail_of(known), self._last_binding)
        values, ledger, load, bindings = await self._client.fill(Use.OPENING, self._opening, asked, late)
        view, row = self._take(load), read_session(values)
        if row is None or values[-1] is None:
            known = ledger = b""
        if ledger is None:
            ledger = known
        if not bindings:
            return Opened(row, ledger, view)
        self._last_binding = max(self._last_binding, bindings[-1][0], key=stream_id)
        return Opened(row, ledger, view, bindings=[read_binding(fields) for _, fields in bindings])

    def _give_back(self, session: str, reply: Sequence[Any]) -> None:
        """An opening that nobody waited for took the handle: put it back."""
        row = read_session(reply[0])
        if row is not None and row.handle is not None:
            self._in_background(row.handle.ref, self._put_back(session, row))

    async def _put_back(self, session: str, row: SessionRow) -> None:
        await self.close_round(session, row, None)

    async def bind(
        self, session: str, worker: int, epoch: str, tokens: int, *, replace: str | None = None, version: int = 0
    ) -> SessionRow:
        keys = (self._load, self._changes, self._session_key(session), self._bindings)
        args = (worker, epoch, tokens, replace or "", self._idle_ms, version, session)
        return read_bound(await self._client.run(Use.CHANGE, "bind", keys, args))

    async def restore(self, session: str, row: SessionRow, ledger: bytes, closed: int) -> SessionRow:
        ids = (row.worker, row.epoch, row.version, closed, row.round, row.tokens, int(row.derived))
        args = (*ids, pack_handle(row), ledger, self._idle_ms, pack_held(row))
        return read_bound(await self._client.run(Use.REPORT, "restore", (self._session_key(session),), args))

    async def close_round(self, session: str, row: SessionRow, ledger: bytes | None) -> Handle | None:
        has_ledger = 0 if ledger is None else 1
        ids = (row.epoch, row.version, row.round, row.tokens, int(row.derived))
        args = (*ids, pack_handle(row), ledger or b"", has_ledger, self._idle_ms, pack_held(row))
        unused = await self._client.run(Use.CHANGE, "close_round", (self._session_key(session),), args)
        return None if unused is None else unpack_handle(unused)

    async def end_session(self, session: str) -> SessionRow | None:
        return read_session(await self._client.run(Use.CHANGE, "end_session", (self._session_key(session),), ()))

    async def enqueue(self, worker: int, entry: QueueEntry) -> None:
        await self._client.run(Use.CHANGE, *self._arrival(worker, entry))

    def enqueue_soon(self, worker: int, entry: QueueEntry) -> None:
        self._client.run_soon(*self._arrival(worker, entry))

    async def dequeue(self, worker: int, task: str, postponed: Sequence[str] = ()) -> None:
        await self._client.run(Use.REPORT, *self._departures(worker, [(task, postponed)]))

    async def queue(self, worker: int) -> list[QueueEntry]:
        items = [_queued(value) for value in await self._client.command(Use.REPORT, "HVALS", self._queue_key(worker))]
        return [entry for _, entry in sorted(items, key=lambda item: item[0])]

    async def observe(self, samples: Sequence[Sample]) -> None:
        if samples:
            await self._client.run(Use.REPORT, *self._samples(samples))

    async def sessions(self) -> int:
        found: set[bytes] = set()
        cursor = b"0"
        while True:
            scan = ("SCAN", cursor, "MATCH", self._session_key("*"), "COUNT", 1000)
            cursor, keys = await self._client.command(Use.REPORT, *scan)
            found.update(keys)
            if int(cursor) == 0:
                return len(found)

    def _heartbeat(self, row: WorkerRow) -> Call:
        keys = (self._load, self._changes, self._window_key(row.id), self._queue_key(row.id))
        return "put_worker", keys, (row.id, pack(row), row.epoch, self._settings.window_s)

    def _arrival(self, worker: int, entry: QueueEntry) -> Call:
        keys = (self._load, self._changes, self._queue_key(worker))
        return "enqueue", keys, (worker, entry.id, pack(entry), entry.cost_s)

    def _departures(self, worker: int, departures: Sequence[tuple[str, Sequence[str]]]) -> Call:
        args: list[Arg] = [worker]
        for task, postponed in departures:
            args += (task, len(postponed), *postponed)
        return "dequeue", (self._load, self._changes, self._queue_key(worker)), args

    def _samples(self, samples: Sequence[Sample]) -> Call:
        keys = [self._load, self._changes, *(self._window_key(s.worker) for s in samples)]
        return "observe", keys, (self._settings.window_s, *(v for s in samples for v in (s.worker, s.kind, s.total, s.count)))

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
