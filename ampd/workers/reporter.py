"""What a worker tells the state store: its row with a heartbeat, departures from its queue, and window samples.

Nothing here is awaited by a round: a store that does not answer costs reports, never service.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from ampd.errors import StateError
from ampd.policy.types import WorkerView
from ampd.state.base import QueueEntry, Sample, StateStore, WorkerRow

log = logging.getLogger(__name__)

# From a change to its report, seconds.
MIN_INTERVAL_S = 0.05
# Heartbeats between two comparisons of the mirror with the queue itself.
_AUDIT_EVERY = 8


class Reporter:
    """Sends reports in the background, in order, each in one trip: `interval_s` after a change, and every `heartbeat_s`."""

    def __init__(
        self,
        store: StateStore,
        row: Callable[[], WorkerRow],
        waiting: Callable[[], Sequence[QueueEntry]],
        heartbeat_s: float,
        interval_s: float = MIN_INTERVAL_S,
    ) -> None:
        self._store, self._row, self._waiting, self._heartbeat_s = store, row, waiting, heartbeat_s
        self._interval_s = interval_s
        self._changed = asyncio.Event()
        self._departures: list[tuple[str, tuple[str, ...]]] = []
        self._sums: dict[tuple[int, str], list[float]] = {}
        self._strangers: set[str] = set()
        self._missing: set[str] = set()
        self._degraded = False
        self.failed = 0
        self.seen: WorkerView | None = None  # this worker as routing sees it, since the last audit

    def departed(self, task: str, postponed: Sequence[str]) -> None:
        """A task left the waiting set."""
        self._departures.append((task, tuple(postponed)))
        self._changed.set()

    def touch(self) -> None:
        """The row has changed in a way that routing should see soon."""
        self._changed.set()

    def ttft(self, worker: int, seconds: float) -> None:
        """A round's TTFT, for the worker that prefilled it."""
        self._add(worker, "ttft", seconds)

    def itl(self, worker: int, seconds: float, count: int) -> None:
        """`count` inter-token gaps that sum to `seconds`."""
        self._add(worker, "itl", seconds, count)

    def _add(self, worker: int, kind: str, seconds: float, count: int = 1) -> None:
        entry = self._sums.setdefault((worker, kind), [0.0, 0])
        entry[0] += seconds
        entry[1] += count

    async def run(self) -> None:
        """Report until cancelled."""
        beat = 0
        while True:
            await self._report(audit=beat % _AUDIT_EVERY == 0)
            beat += 1
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    await self._changed.wait()
            except TimeoutError:
                continue
            # Not at once: changes come in swarms; and what has just been dispatched and begun here may reach the store before the
            # word of its Coordinator, who then shows a task that has left already.
            await asyncio.sleep(self._interval_s)

    async def _report(self, audit: bool) -> None:
        self._changed.clear()
        row = self._row()
        departures, self._departures = self._departures, []
        sums, self._sums = self._sums, {}
        try:
            await self._store.report(row, departures, [_sample(key, total, count) for key, (total, count) in sums.items()])
            if audit:
                await self._audit(row.id)
        except StateError as e:
            # Departures are left to the audit; samples of an unseen window are worth nothing later.
            self.failed += 1
            if not self._degraded:
                log.warning("state store does not answer, reports are dropped until it does: %s", e)
            self._degraded = True
        else:
            if self._degraded:
                log.warning("state store answers again")
            self._degraded = False

    async def _audit(self, worker: int) -> None:
        """Look at oneself, and set right what the mirror of the queue has too much or too little at two audits running.

        A Coordinator enqueues before it dispatches, so an entry without a payload is normal for a moment. An entry is missing
        after the store was lost, or the Coordinator's word to it.
        """
        self.seen = (await self._store.view()).find(worker)
        mirror = {entry.id for entry in await self._store.queue(worker)}
        waiting = {entry.id: entry for entry in self._waiting()}
        strangers, missing = mirror - set(waiting), set(waiting) - mirror
        for task in strangers & self._strangers:
            await self._store.dequeue(worker, task)
        for task in missing & self._missing:
            await self._store.enqueue(worker, waiting[task])
        self._strangers, self._missing = strangers, missing


def _sample(key: tuple[int, str], total: float, count: float) -> Sample:
    worker, kind = key
    return Sample(worker, "ttft" if kind == "ttft" else "itl", total, int(count))
