"""The event loop: a heap of (time, number, handler, argument). Events of one instant run in the order in which they were pushed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from math import inf
from typing import Any

Handler = Callable[[float, Any], None]


class Loop:
    """Virtual time. Handlers are called with the time and their argument, and push what follows from them."""

    __slots__ = ("_count", "_heap", "ended", "now")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Handler, Any]] = []
        self._count = 0
        self.now = 0.0
        self.ended = False

    def at(self, time: float, handler: Handler, argument: Any) -> None:
        """Have `handler(time, argument)` called at `time`, which must not lie before the present."""
        heappush(self._heap, (time, self._count, handler, argument))
        self._count += 1

    @property
    def events(self) -> int:
        """Events pushed so far."""
        return self._count

    @property
    def empty(self) -> bool:
        """Whether nothing is to come."""
        return not self._heap

    def run(self, until_s: float = inf) -> None:
        """Run all events up to and including `until_s`, or until `ended` is set."""
        heap, pop = self._heap, heappop
        while heap and not self.ended:
            if heap[0][0] > until_s:
                self.now = until_s
                return
            time, _, handler, argument = pop(heap)
            self.now = time
            handler(time, argument)

    def waiting(self, handler: Handler) -> Iterator[tuple[float, Any]]:
        """(Time, argument) of the events for `handler` that have not come, in no particular order."""
        return ((time, argument) for time, _, other, argument in self._heap if other == handler)
