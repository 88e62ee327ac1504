"""The last view that a store gave, brought forward while the store is away.

Without that, every decision of an outage would see the same queues and pick the same worker. Queued work is worked off as time
passes, and what this process itself sends is added; what others send is not known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec.structs import replace

from ampd.policy.types import ClusterView, WorkerView


class LastView:
    """`clock` in seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.view = ClusterView()
        self._clock = clock
        self._at = clock()
        self._promised: Counter[int] = Counter()
        self._busy_until: dict[int, float] = {}  # workers that got work from here since

    def take(self, view: ClusterView) -> None:
        """The store's answer of now."""
        self.view, self._at = view, self._clock()

    def promise(self, worker: int, tokens: int) -> None:
        """A session was bound without the store."""
        self._promised[worker] += tokens

    def queue(self, worker: int, seconds: float) -> None:
        """A prefill was sent without the store."""
        known = self.view.find(worker)
        if known is not None:
            until = self._busy_until.get(worker, self._at + known.queued_s)
            self._busy_until[worker] = max(until, self._clock()) + seconds

    def clear(self) -> None:
        """The store has been told, or its workers' reports will tell it."""
        self._promised.clear()
        self._busy_until.clear()

    def now(self) -> ClusterView:
        """As it should be by now."""
        return ClusterView([self._moved(w) for w in self.view.prefill], [self._moved(w) for w in self.view.decode])

    def _moved(self, worker: WorkerView) -> WorkerView:
        left_s = max(0.0, self._busy_until.get(worker.id, self._at + worker.queued_s) - self._clock())
        promised = self._promised.get(worker.id, 0)
        if left_s == worker.queued_s and not promised:
            return worker
        return replace(worker, queued_s=left_s, kv_promised=worker.kv_promised + promised)
