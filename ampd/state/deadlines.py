"""Deadlines of the requests under way on one connection, kept by one timer: a timer each would cost more than the request itself.

A deadline is about Redis, not about this process. A request whose time is up while the event loop stood still, or while replies
keep coming, gets its time again, a few times at most; and one more look at the socket before it is given up, in case its reply came
during a stall and is still unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import Any, Protocol

from ampd.errors import StateError

_GRACE_S = 0.001
_EXTENSIONS = 3
_LATE = 0.5  # of its limit: a timer this late was kept from running, and a reply this young shows that Redis is at work


class Timed(Protocol):
    """A request: `due` on the monotonic clock; `extended` how often; `last_look` whether the grace is running."""

    future: asyncio.Future[list[Any]]
    limit_s: float
    due: float
    extended: int
    last_look: bool


class Deadlines:
    """Fails those of `owed` that are overdue, with StateError. `heard_at` is when the last reply came."""

    __slots__ = ("_at", "_loop", "_owed", "_timer", "_where", "heard_at")

    def __init__(self, where: str, owed: Sequence[Timed]) -> None:
        self._where, self._owed = where, owed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at = inf  # when the timer is due
        self.heard_at = -inf

    def add(self, due: float) -> None:
        """Look at `due` at the latest."""
        if due < self._at:
            self._arm(due, monotonic())

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, at: float, now: float) -> None:
        self.stop()
        self._at, self._timer = at, None
        if at < inf:
            # Loops count in milliseconds; and of many deadlines a look serves those of a millisecond.
            self._timer = self._loop.call_later(max(at - now, _GRACE_S), self._look)

    def _look(self) -> None:
        now = monotonic()
        late_s, next_at = now - self._at, inf
        for request in self._owed:
            if request.future.done():
                continue
            if request.due <= now and self._is_over(request, now, late_s):
                limit_ms = request.limit_s * 1000
                request.future.set_exception(StateError(f"Redis at {self._where} did not answer within {limit_ms:.0f} ms"))
            elif request.due < next_at:
                next_at = request.due
        self._arm(next_at, now)

    def _is_over(self, request: Timed, now: float, late_s: float) -> bool:
        """Whether a request that is due has had its time. If not, it is due later."""
        enough_s = _LATE * request.limit_s
        if request.extended < _EXTENSIONS and (late_s > enough_s or now - self.heard_at < enough_s):
            request.extended += 1
            request.due, request.last_look = now + request.limit_s, False
            return False
        if request.last_look:
            return True
        request.due, request.last_look = now + _GRACE_S, True
        return False
