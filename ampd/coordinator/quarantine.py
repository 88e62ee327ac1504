"""Workers that have just failed a call: left out of decisions for a while, then tried again."""

from __future__ import annotations

import time
from collections.abc import Callable

from ampd.policy.types import ClusterView


class Quarantine:
    """Discovery lists a dead worker for several seconds more; whoever failed is not asked again for `seconds`."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._until: dict[int, float] = {}

    def add(self, worker: int) -> None:
        """Leave a worker out from now on."""
        self._until[worker] = self._clock() + self._seconds

    def healthy(self, view: ClusterView) -> ClusterView:
        """The view without the workers in quarantine."""
        if not self._until:
            return view
        now = self._clock()
        self._until = {worker: until for worker, until in self._until.items() if until > now}
        return ClusterView(
            prefill=[w for w in view.prefill if w.id not in self._until],
            decode=[w for w in view.decode if w.id not in self._until],
        )
