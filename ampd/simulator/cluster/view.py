"""The cluster as Coordinators see it: queues at once, all else of a worker as of its last report (ampd/workers/reporter.py).

A report follows a departure from the queue by `Delays.changed_s`, and the report before it by `Delays.report_s`; a worker that has
nothing to tell any more sends none, which nobody could tell from one that repeats itself.
"""

from __future__ import annotations

from math import ceil, inf
from typing import Protocol

from ampd.policy.types import ClusterView, Role, WorkerView
from ampd.simulator.cluster.loop import Loop
from ampd.simulator.cluster.windows import Window
from ampd.simulator.types import Delays


class Row:
    """What a worker says of itself in a report, as ampd.state.base.WorkerRow. Before `next_at` nothing of it changes by itself."""

    __slots__ = ("context", "kv_free", "kv_pinned", "kv_written", "link_s", "next_at", "running", "running_s")

    def __init__(self) -> None:
        self.running = self.context = self.kv_free = self.kv_pinned = self.kv_written = 0
        self.running_s = self.link_s = 0.0
        self.next_at = inf


class Reporting(Protocol):
    """A worker, as far as it reports."""

    @property
    def id(self) -> int: ...
    @property
    def role(self) -> Role: ...
    @property
    def theta(self) -> int: ...
    @property
    def kv_tokens(self) -> int: ...

    def report(self, now: float, row: Row) -> None:
        """Fill in the row."""

    def departures(self) -> tuple[int, float]:
        """Tasks, and their seconds, that have left the queue since the last call."""

    def samples(self) -> tuple[list[tuple[int, float]], float, int]:
        """Since the last call: (worker, TTFT) of rounds whose first token left here; seconds and number of token gaps."""


class Known:
    """One worker as the store knows it, and when it reports next."""

    __slots__ = (
        "before", "changed", "due_at", "last_at", "number", "place", "promised", "queued_s", "row", "soon", "tasks", "window",
        "worker",
    )  # fmt: skip

    def __init__(self, worker: Reporting, place: int, window_s: float) -> None:
        self.worker, self.place, self.row, self.window = worker, place, Row(), Window(window_s)
        self.row.kv_free = worker.kv_tokens
        self.tasks = self.promised = self.before = 0
        self.queued_s = 0.0
        self.changed = False
        self.last_at = 0.0
        self.number = 0  # of the report that is due next
        self.due_at = inf
        self.soon = False


class State:
    """The store: what Coordinators write and read, and the reports."""

    __slots__ = ("_delays", "_dirty", "_known", "_lists", "_loop", "_view")

    def __init__(self, loop: Loop, delays: Delays) -> None:
        self._loop, self._delays = loop, delays
        self._known: list[Known] = []
        self._dirty: list[Known] = []
        self._lists: dict[Role, list[WorkerView]] = {"prefill": [], "decode": []}
        self._view = ClusterView(self._lists["prefill"], self._lists["decode"])

    def add(self, worker: Reporting, window_s: float) -> None:
        """A worker joins; ids count from 0."""
        views = self._lists[worker.role]
        known = Known(worker, len(views), window_s)
        self._known.append(known)
        views.append(_view_of(known))

    def view(self) -> ClusterView:
        """What a Coordinator reads now. Good until the next event."""
        if self._dirty:
            for known in self._dirty:
                known.changed = False
                self._lists[known.worker.role][known.place] = _view_of(known)
            self._dirty.clear()
        return self._view

    def only(self, workers: list[int]) -> ClusterView:
        """The last view, of these workers alone and without regard to their roles."""
        known, lists = self._known, self._lists
        return ClusterView([lists[known[w].worker.role][known[w].place] for w in workers])

    def enqueue(self, worker: int, seconds: float) -> None:
        """A Coordinator has placed a task."""
        known = self._known[worker]
        known.tasks += 1
        known.queued_s += seconds
        self._touched(known)

    def promise(self, now: float, worker: int, tokens: int) -> None:
        """A session has been bound."""
        known = self._known[worker]
        known.promised += tokens
        self._touched(known)
        self.stir(now, worker)

    def stir(self, now: float, worker: int) -> None:
        """A worker that may have been quiet has something to tell, in its next report."""
        known = self._known[worker]
        if known.due_at - now > self._delays.report_s:
            every = self._delays.report_s
            beats = max(1, ceil((now - known.last_at) / every)) if every > 0.0 else 0
            self._schedule(max(known.last_at + beats * every, now), known)

    def soon(self, now: float, worker: int) -> None:
        """A worker has a change to tell soon: a task has left its queue."""
        known = self._known[worker]
        if not known.soon:
            known.soon = True
            self._schedule(now + self._delays.changed_s, known)

    def _schedule(self, at: float, known: Known) -> None:
        known.due_at = at
        known.number += 1
        self._loop.at(at, self._report, (known, known.number))

    def _touched(self, known: Known) -> None:
        if not known.changed:
            known.changed = True
            self._dirty.append(known)

    def _report(self, now: float, due: tuple[Known, int]) -> None:
        known, number = due
        if known.number != number:
            return
        known.due_at, known.soon = inf, False
        known.last_at = now
        worker = known.worker
        worker.report(now, known.row)
        tasks, seconds = worker.departures()
        known.tasks -= tasks
        known.queued_s = known.queued_s - seconds if known.tasks else 0.0
        known.before, known.promised = known.promised, 0
        self._observe(now, known)
        self._touched(known)
        settled = known.window.empty and not known.before and not known.tasks
        next_at = known.row.next_at if settled else now
        if next_at < inf:
            self._schedule(max(next_at, now + self._delays.report_s), known)

    def _observe(self, now: float, known: Known) -> None:
        ttfts, itl_s, itls = known.worker.samples()
        if itls:
            known.window.add(now, 0.0, 0, itl_s, itls)
        for worker, ttft_s in ttfts:
            other = self._known[worker]
            other.window.add(now, ttft_s, 1, 0.0, 0)
            if other is not known:
                other.window.fold(now)
                self._touched(other)
                self.stir(now, worker)
        if not known.window.empty:
            known.window.fold(now)


def _view_of(known: Known) -> WorkerView:
    worker, row, window = known.worker, known.row, known.window
    return WorkerView(
        id=worker.id,
        role=worker.role,
        epoch="",
        theta=worker.theta,
        ttft_s=window.ttft_s,
        itl_s=window.itl_s,
        queued_s=known.queued_s + row.running_s,
        queued_tasks=known.tasks,
        running=row.running,
        kv_total=worker.kv_tokens,
        kv_free=row.kv_free,
        kv_pinned=row.kv_pinned,
        kv_promised=known.promised + known.before,
        context=row.context,
        link_s=row.link_s,
        kv_written=row.kv_written,
    )
