"""One connection to Redis, shared by all callers: requests are written as they come, replies matched to them in order.

redis-py gives a connection to one caller at a time, and a caller cancelled before its reply leaves that reply to the next one
(redis/redis-py#2624). Here a reply always goes to the request at the head of the line, whether or not its caller still waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any, cast

import hiredis

from ampd.errors import StateError
from ampd.state.deadlines import Deadlines

Arg = str | bytes | int | float
Late = Callable[[list[Any]], None]
# hiredis says that it takes a tuple of one value; it takes any.
pack: Callable[[tuple[Arg, ...]], bytes] = cast(Any, hiredis.pack_command)

_UNSENT_BYTES = 16 << 20  # a peer that leaves this much unread is given no more
_LOOKS = 4  # within the time that a connection may be silent


class Lost(Exception):
    """The connection ended, or was given up, before the reply came."""


class Pending:
    """A request that is owed `left` more replies, the last by `due` (see `Deadlines`).

    `late` gets the replies if the caller is gone when they come.
    """

    __slots__ = ("due", "extended", "future", "last_look", "late", "left", "limit_s", "replies")

    def __init__(self, future: asyncio.Future[list[Any]], left: int, late: Late | None, limit_s: float) -> None:
        self.future, self.left, self.late, self.limit_s = future, left, late, limit_s
        self.due = monotonic() + limit_s
        self.extended = 0
        self.last_look = False
        self.replies: list[Any] = []


class Connection(asyncio.Protocol):
    """Errors that Redis answers with are replies like others (`hiredis.ReplyError`).

    Owing a reply for `silent_s` ends the connection, and with it every request under way: a peer that is gone without a word must
    not hold callers, nor their memory.
    """

    def __init__(self, where: str, max_pending: int, silent_s: float, ended: Callable[[Connection, Exception], None]) -> None:
        self._where, self._max_pending, self._ended = where, max_pending, ended
        self._look_s = silent_s / _LOOKS
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._owed: deque[Pending] = deque()
        self._deadlines = Deadlines(where, self._owed)
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._reason: Exception | None = None
        self.closed = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by descent
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES)

    def send(self, data: bytes, replies: int = 1, late: Late | None = None, limit_s: float = inf) -> asyncio.Future[list[Any]]:
        """Write commands that have `replies` replies in all. The future ends with the replies, with Lost, or after `limit_s`
        with StateError.

        Raises StateError when too much is under way already.
        """
        if self._transport is None or self._transport.is_closing():
            raise Lost("the connection is closing")
        if len(self._owed) >= self._max_pending or self._paused:
            raise StateError(
                f"Redis at {self._where} owes {len(self._owed)} answers already (state.max_pending {self._max_pending})"
            )
        pending = Pending(self._loop.create_future(), replies, late, limit_s)
        self._owed.append(pending)
        self._transport.write(data)
        self._deadlines.add(pending.due)
        if self._timer is None:
            self._watch(pending, 0)
        return pending.future

    def data_received(self, data: bytes) -> None:
        reader, owed = self._reader, self._owed
        self._deadlines.heard_at = monotonic()
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                pending = owed[0]
                pending.replies.append(reply)
                pending.left -= 1
                if pending.left == 0:
                    owed.popleft()
                    _answer(pending)
        except (hiredis.ProtocolError, IndexError) as e:
            self.abort(Lost(f"not the answer of a Redis ({e})"))

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False

    def abort(self, reason: Exception) -> None:
        """End it now; requests under way fail with `reason`."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    async def finish(self, timeout_s: float) -> None:
        """Wait for the replies that are owed, then close."""
        if self._owed:
            await asyncio.wait((self._owed[-1].future,), timeout=timeout_s)
        self.abort(Lost("closed"))
        await self.closed.wait()

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self._reason or Lost(str(exc) if exc is not None else "Redis closed the connection")
        self._deadlines.stop()
        if self._timer is not None:
            self._timer.cancel()
        while self._owed:
            future = self._owed.popleft().future
            if not future.done():
                future.set_exception(reason)
                future.exception()  # who still waits sees it; nobody else has to
        self.closed.set()
        self._ended(self, reason)

    def _watch(self, head: Pending, looks: int) -> None:
        """Look again and again who is first in line. A stall of this process counts as one look, whatever its length."""
        self._timer = self._loop.call_later(self._look_s, self._look, head, looks + 1)

    def _look(self, head: Pending, looks: int) -> None:
        self._timer = None
        if not self._owed:
            return
        if self._owed[0] is not head:
            self._watch(self._owed[0], 0)
        elif looks < _LOOKS:
            self._watch(head, looks)
        else:
            self.abort(Lost(f"silent for {self._look_s * _LOOKS:.1f} s"))


def _answer(pending: Pending) -> None:
    if not pending.future.done():
        pending.future.set_result(pending.replies)
    elif pending.late is not None:
        pending.late(pending.replies)
