"""Watches the calls under way: stops those whose caller has gone away, and those that make no progress.

One timer for all calls. A task and a timeout for each call and chunk would cost more than the rest of a one-token round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from types import TracebackType

from ampd.coordinator.workers import Caller, Leg
from ampd.errors import RoundCancelled, WorkerError

# How long after a caller has gone its calls may go on unnoticed.
_PERIOD_S = 0.02
# How long a call that was told to finish may take (one engine step and its last chunk), and one that was stopped.
FINISH_S = 10.0
_STOP_S = 2.0


class Call:
    """One call to a worker, for the length of a `with` block.

    The leg is stopped when its caller goes away, when nothing has arrived for the timeout, or when the block fails; it then ends by
    itself. One that does not end is cancelled. The block raises RoundCancelled when its caller is gone, TimeoutError on a timeout.
    `finish` has the worker end the call soon, or says that it cannot; the leg is then stopped only if it does not end.
    """

    def __init__(self, watch: Watch, caller: Caller, id: str, finish: Callable[[], Awaitable[bool]] | None) -> None:
        self._watch, self._caller, self._id, self._finish = watch, caller, id, finish
        self._task: asyncio.Task[None] | None = None  # finishes the call
        self._waiter: asyncio.Task[object] | None = None  # waits for the worker
        self._gone = self._late = self._cancelled = False
        self._deadline = 0.0

    def __enter__(self) -> Call:
        if self._caller.gone():
            raise RoundCancelled(self._id)
        self.leg: Leg = self._caller.leg(self._id)
        self.waiting()
        self._watch.add(self)
        return self

    def waiting(self) -> None:
        """The current task begins to wait for the worker: the time without progress counts from now."""
        self._waiter = asyncio.current_task()
        self._deadline = self._watch.now() + self._watch.timeout_s

    def idle(self) -> None:
        """Nobody waits for the worker: the caller has what there is. Its time does not count.

        The task is forgotten too: it knows the generator that it pulled, which must be free to go when Dynamo drops it.
        """
        self._waiter = None
        self._deadline = inf

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._watch.remove(self)
        if self._task is not None:
            self._task.cancel()
        if kind is None:
            return
        self.leg.stop_generating()
        if self._cancelled and isinstance(error, asyncio.CancelledError) and self._waiter is not None:
            self._waiter.uncancel()
        elif not isinstance(error, WorkerError):
            return
        if self._gone or self._caller.gone():
            raise RoundCancelled(self._id) from error
        if self._late:
            raise TimeoutError(f"no progress of {self._id} for {self._watch.timeout_s:g} s") from error

    def look(self, now: float) -> None:
        """Stop it if there is a reason to."""
        if not self._gone and not self._late and self._caller.gone():
            self._gone = True
            if self._finish is None:
                self._stop(now)
            else:
                self._task = asyncio.create_task(self._end(self._finish))
        elif now > self._deadline:
            if self._late or (self._gone and self._finish is None):
                self._cancel()
            else:
                self._late = True
                self._stop(now)

    def _stop(self, now: float) -> None:
        self.leg.stop_generating()
        self._deadline = now + _STOP_S

    def _cancel(self) -> None:
        if self._waiter is not None and not self._cancelled:
            self._cancelled = self._waiter.cancel()

    async def _end(self, finish: Callable[[], Awaitable[bool]]) -> None:
        if await finish():
            await asyncio.sleep(FINISH_S)
        self.leg.stop_generating()


class Watch:
    """The calls under way. `timeout_s` bounds the time without any progress of each."""

    def __init__(self, timeout_s: float, clock: Callable[[], float]) -> None:
        self.timeout_s, self.now = timeout_s, clock
        self._calls: set[Call] = set()
        self._timer: asyncio.TimerHandle | None = None

    def call(self, caller: Caller, id: str, finish: Callable[[], Awaitable[bool]] | None = None) -> Call:
        """A call, to be entered."""
        return Call(self, caller, id, finish)

    def add(self, call: Call) -> None:
        """Watch a call from now on."""
        self._calls.add(call)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self._look)

    def remove(self, call: Call) -> None:
        """Watch it no more."""
        self._calls.discard(call)

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_PERIOD_S, self._look) if self._calls else None
        now = self.now()
        for call in list(self._calls):
            call.look(now)
