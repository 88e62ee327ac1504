"""A StateStore that goes on when the one below it does not answer (invariant 5 of the design).

A call that misses its deadline, or comes while the store is away, is served from the last view and from this process's own copies
of its sessions, and counted. The store is tried again in the background; when it answers, what changed meanwhile is written back,
or everything if it came back empty, and the first writer wins. New sessions are bound meanwhile by a rule that all processes
share, and the others' earlier bindings are known from `Opened.bindings`, so that two processes that cannot talk still agree. Copies
are safe to use: the worker that owns a handle refuses a second use of it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import TypeVar

from msgspec.structs import replace as changed

from ampd.errors import SetupError, StateError
from ampd.messages import Handle
from ampd.policy.types import ClusterView, WorkerView
from ampd.state.base import Opened, QueueEntry, Sample, SessionRow, StateStore, WorkerRow
from ampd.state.last_view import LastView
from ampd.state.session_table import SessionTable
from ampd.state.settings import StoreSettings
from ampd.state.write_back import WriteBack

log = logging.getLogger(__name__)
T = TypeVar("T")

_FIRST_RETRY_S, _LAST_RETRY_S = 0.1, 1.0
# So many deadlines missed in a row, and no answer for so long, and the store counts as away: a hiccup of a busy machine makes all
# calls miss that are under way, and is over before the next ones.
_MISSES, _SILENCE_S = 3, 0.05


class _CameBackEmpty(StateError):
    """The store answers, but has lost what it held."""


class ResilientStore:
    """Wraps `inner`. `degraded` counts the calls served without it, `slow` the openings that it answered after `deadline_s`; `away`
    tells whether it is out of reach now."""

    def __init__(self, inner: StateStore, settings: StoreSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.degraded = 0
        self.slow = 0
        self.away = False
        self._inner = inner
        self._settings = settings
        self._clock = clock
        self._last = LastView(clock)
        self._unsure_until = float("-inf")  # when every process has had time to write back its sessions
        self._lost = False  # the outage that lasts has emptied the store
        self._complete_at = float("-inf")  # when every live worker has had time for a heartbeat
        self._copies = SessionTable(settings.idle_ttl_s, time.time)
        self._back = WriteBack(self._copies)
        self._misses = 0
        self._answered_at = clock()
        self._recovery: asyncio.Task[None] | None = None

    async def connect(self) -> bool:
        return await self._inner.connect()

    async def close(self) -> None:
        if self._recovery is not None:
            self._recovery.cancel()
            await asyncio.gather(self._recovery, return_exceptions=True)
        await self._inner.close()

    async def put_worker(self, row: WorkerRow) -> None:
        self._back.rows[row.id] = row
        await self._try(lambda: self._inner.put_worker(row), lambda: None)

    async def report(
        self, row: WorkerRow, departures: Sequence[tuple[str, Sequence[str]]] = (), samples: Sequence[Sample] = ()
    ) -> None:
        self._back.rows[row.id] = row

        def here() -> None:
            for task, postponed in departures:
                self._back.departed(row.id, task, postponed)

        await self._try(lambda: self._inner.report(row, departures, samples), here)

    async def remove_worker(self, worker: int) -> None:
        self._back.rows.pop(worker, None)
        await self._try(lambda: self._inner.remove_worker(worker), lambda: None)

    async def view(self) -> ClusterView:
        async def below() -> ClusterView:
            return await self._accept(await self._inner.view())

        return await self._try(below, self._last.now)

    async def open_round(self, session: str, known: bytes = b"") -> Opened:
        # Every decision waits for this: no closures and calls that can be spared (see `_try`).
        if not self.away:
            try:
                copy, started = self._copies.get(session), self._clock()
                opened = await self._inner.open_round(session, known if copy is None else copy.ledger)
                now = self._clock()
                self.slow += now - started > self._settings.deadline_s
                opened = await self._check(session, opened, now)
            except StateError as e:
                self._missed(e)
            else:
                self._misses, self._answered_at = 0, now
                return opened
        self.degraded += 1
        row, ledger = self._copies.open(session)
        if row is not None:
            self._back.changed(session)
        return Opened(row, ledger, self._last.now(), degraded=True, unsure=True)

    async def _check(self, session: str, opened: Opened, now: float) -> Opened:
        """Learn from the store's answer; and mark it, or raise _CameBackEmpty, if the store may have lost something."""
        copies, view = self._copies, opened.view
        if view is not self._last.view:
            view = await self._accept(view)
        for other, bound in opened.bindings:
            copies.learn(other, bound)
        if (row := opened.session) is not None:
            copies.adopt(session, row if row.handle is None else changed(row, handle=None), opened.ledger)
        elif copies.get(session) is not None:
            await self._check_lost()
            copies.end(session)  # it was ended by another process
        if view is opened.view and now >= self._unsure_until:
            return opened
        return changed(opened, view=view, unsure=now < self._unsure_until)

    async def bind(
        self, session: str, worker: int, epoch: str, tokens: int, *, replace: str | None = None, version: int = 0
    ) -> SessionRow:
        async def below() -> SessionRow:
            row = await self._inner.bind(session, worker, epoch, tokens, replace=replace, version=version)
            self._copies.adopt(session, changed(row, handle=None), None)
            return row

        def here() -> SessionRow:
            self._back.changed(session)
            chosen, its_epoch = worker, epoch
            if self.away and replace is None and tokens > 0 and (agreed := self._agreed(session, tokens)) is not None:
                chosen, its_epoch = agreed.id, agreed.epoch
            row, new = self._copies.bind(session, chosen, its_epoch, replace, version)
            if new:
                self._last.promise(chosen, tokens)
            return row

        return await self._try(below, here)

    async def restore(self, session: str, row: SessionRow, ledger: bytes, closed: int) -> SessionRow:
        async def below() -> SessionRow:
            return await self._inner.restore(session, row, ledger, closed)

        def here() -> SessionRow:
            self._back.changed(session)
            return self._copies.restore(session, row, ledger, closed)

        return await self._try(below, here)

    async def close_round(self, session: str, row: SessionRow, ledger: bytes | None) -> Handle | None:
        async def below() -> Handle | None:
            unused = await self._inner.close_round(session, row, ledger)
            if unused is None or unused != row.handle:
                self._copies.close(session, row, ledger)
            return unused

        def here() -> Handle | None:
            self._back.changed(session)
            return self._copies.close(session, row, ledger)

        return await self._try(below, here)

    async def end_session(self, session: str) -> SessionRow | None:
        async def below() -> SessionRow | None:
            row = await self._inner.end_session(session)
            self._copies.end(session)
            return row

        def here() -> SessionRow | None:
            self._back.ended(session)
            return self._copies.end(session)

        return await self._try(below, here)

    async def enqueue(self, worker: int, entry: QueueEntry) -> None:
        await self._try(lambda: self._inner.enqueue(worker, entry), lambda: None)

    def enqueue_soon(self, worker: int, entry: QueueEntry) -> None:
        if self.away:
            self.degraded += 1
            self._last.queue(worker, entry.cost_s)
        else:
            self._inner.enqueue_soon(worker, entry)

    async def dequeue(self, worker: int, task: str, postponed: Sequence[str] = ()) -> None:
        await self._try(lambda: self._inner.dequeue(worker, task, postponed), lambda: self._back.departed(worker, task, postponed))

    async def queue(self, worker: int) -> list[QueueEntry]:
        return await self._try(lambda: self._inner.queue(worker), list)

    async def observe(self, samples: Sequence[Sample]) -> None:
        await self._try(lambda: self._inner.observe(samples), lambda: None)

    async def sessions(self) -> int:
        return await self._try(self._inner.sessions, lambda: len(self._copies))

    async def _try(self, below: Callable[[], Awaitable[T]], here: Callable[[], T]) -> T:
        """One call: by the store below, or here while that is away."""
        if not self.away:
            try:
                answer = await below()
            except StateError as e:
                self._missed(e)
            else:
                self._misses, self._answered_at = 0, self._clock()
                return answer
        self.degraded += 1
        return here()

    def _missed(self, error: StateError) -> None:
        """A slow answer is forgiven, an error (or a row of slow ones) is not."""
        self._misses += 1
        silent = self._misses >= _MISSES and self._clock() - self._answered_at >= _SILENCE_S
        if not self.away and (silent or isinstance(error, _CameBackEmpty) or error.__cause__ is not None):
            self.away = True
            log.warning("state store away, serving from the last view and own sessions: %s", error)
        if self._recovery is None or self._recovery.done():
            self._recovery = asyncio.create_task(self._recover(self._clock(), self.degraded))

    async def _accept(self, view: ClusterView) -> ClusterView:
        """Make a view from the store the last one. After an outage it lacks the workers whose next heartbeat is still to come."""
        if self._clock() < self._complete_at:
            view = ClusterView(_union(view.prefill, self._last.view.prefill), _union(view.decode, self._last.view.decode))
        elif not view.decode and self._last.view.decode:
            await self._check_lost()
        self._last.take(view)
        return view

    async def _check_lost(self) -> None:
        """Raise _CameBackEmpty if the store restarted empty without a call noticing."""
        if await self._reconnect():
            raise _CameBackEmpty("it restarted without what it held")

    async def _reconnect(self) -> bool:
        try:
            lost = await self._inner.connect()
        except SetupError as e:
            raise StateError(str(e)) from e
        if lost:
            self._lost = True
            self._back.changed(*self._copies.keys())
        return lost

    async def _recover(self, since: float, degraded: int) -> None:
        """Try again until the store answers, then write back."""
        wait_s = _FIRST_RETRY_S
        while True:
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LAST_RETRY_S)
            try:
                await self._reconnect()
                await self._back.run(self._inner)
                break
            except StateError:
                continue
        self._last.clear()
        if self.away:
            self._complete_at = self._clock() + self._settings.stale_after_s
            self._unsure_until = self._complete_at if self._lost else self._unsure_until
            self.away, self._lost, self._misses = False, False, 0
            served = self.degraded - degraded
            log.warning("state store back after %.1f s; %d calls were served without it", self._clock() - since, served)

    def _agreed(self, session: str, tokens: int) -> WorkerView | None:
        """The decode worker that every process would choose for a new session with nobody to ask (rendezvous hashing)."""
        able = [w for w in self._last.view.decode if not w.draining and w.kv_total >= tokens]
        return max(able, key=lambda w: sha256(f"{session} {w.id} {w.epoch}".encode()).digest(), default=None)


def _union(fresh: Sequence[WorkerView], last: Sequence[WorkerView]) -> list[WorkerView]:
    known = {w.id for w in fresh}
    return [*fresh, *(w for w in last if w.id not in known)]
