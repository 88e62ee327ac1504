"""What a worker reports, and that a store that is away costs reports only."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from ampd.errors import StateError
from ampd.state.base import QueueEntry, WorkerRow
from ampd.state.memory import MemoryStore
from ampd.workers.reporter import Reporter

ROW = WorkerRow(id=1, role="decode", epoch="e", theta=1, kv_total=100, kv_free=90)


class Flaky(MemoryStore):
    """A store that can be away."""

    away = False

    async def put_worker(self, row: WorkerRow) -> None:
        if self.away:
            raise StateError("away")
        await super().put_worker(row)


def entry(id: str) -> QueueEntry:
    return QueueEntry(id, "s", 1, 0, 10, 0.5, 1.0, 0.0)


class Reporting:
    """A running reporter with a short heartbeat."""

    def __init__(self, waiting: Sequence[str] = ()) -> None:
        self.store = Flaky()
        self.reporter = Reporter(self.store, lambda: ROW, lambda: [entry(id) for id in waiting], heartbeat_s=0.05)

    async def __aenter__(self) -> Reporting:
        await self.store.connect()
        self._task = asyncio.create_task(self.reporter.run())
        await self.beats(1)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def beats(self, n: int) -> None:
        await asyncio.sleep(0.12 * n)


async def test_the_row_and_the_windows_arrive() -> None:
    async with Reporting() as r:
        r.reporter.ttft(1, 0.4)
        r.reporter.ttft(1, 0.2)
        r.reporter.itl(1, 0.3, 3)
        await r.beats(2)
        [worker] = (await r.store.view()).decode
        assert (worker.kv_free, worker.ttft_s, worker.itl_s) == (90, pytest.approx(0.3), pytest.approx(0.1))


async def test_departures_leave_the_mirror_with_their_postponements() -> None:
    async with Reporting(waiting=["b"]) as r:
        for id in "ab":
            await r.store.enqueue(1, entry(id))
        r.reporter.departed("a", ["b"])
        await r.beats(2)
        assert [(e.id, e.postponed) for e in await r.store.queue(1)] == [("b", 1)]


async def test_a_task_whose_payload_never_comes_is_removed_but_not_at_once() -> None:
    async with Reporting() as r:
        await r.beats(2)
        await r.store.enqueue(1, entry("lost"))
        await r.beats(1)
        assert [e.id for e in await r.store.queue(1)] == ["lost"]
        await r.beats(25)
        assert await r.store.queue(1) == []


async def test_a_waiting_task_that_the_store_has_lost_is_put_back() -> None:
    async with Reporting(waiting=["kept"]) as r:
        await r.beats(25)
        assert await r.store.queue(1) == [entry("kept")]
        [worker] = (await r.store.view()).decode
        assert worker.queued_s == pytest.approx(0.5)


async def test_an_outage_costs_reports_and_ends_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    async with Reporting() as r:
        r.store.away = True
        await r.beats(3)
        assert r.reporter.failed >= 2
        assert caplog.text.count("does not answer") == 1
        r.store.away = False
        r.reporter.ttft(1, 0.4)
        await r.beats(2)
        [worker] = (await r.store.view()).decode
        assert worker.ttft_s == pytest.approx(0.4)


async def test_a_departure_does_not_overtake_the_word_of_its_coordinator() -> None:
    """A task may be dispatched, and begin, before what its Coordinator writes to the store is there."""
    store = MemoryStore()
    await store.connect()
    reporter = Reporter(store, lambda: ROW, list, heartbeat_s=60.0, interval_s=0.2)
    task = asyncio.create_task(reporter.run())
    await asyncio.sleep(0.3)  # long since the last report
    reporter.departed("a", ())
    await asyncio.sleep(0.02)
    await store.enqueue(1, entry("a"))
    await asyncio.sleep(0.4)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert await store.queue(1) == []
