"""Contract of every StateStore: rows, windows and queues of workers."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

from state_samples import BIG, SETTINGS, entry, worker

from ampd.state.base import Sample, StateStore
from ampd.state.settings import StoreSettings


async def test_a_row_comes_back_as_it_went_in(store: StateStore) -> None:
    await store.put_worker(worker(7, "prefill", "p", running=2, running_s=0.25, draining=True))
    await store.put_worker(worker(BIG, kv_total=2**33, kv_free=2**32, kv_pinned=5))
    view = await store.view()
    (prefill,), (decode,) = view.prefill, view.decode
    assert (prefill.id, prefill.epoch, prefill.running, prefill.queued_s, prefill.draining) == (7, "p", 2, 0.25, True)
    assert (decode.id, decode.kv_total, decode.kv_free, decode.kv_pinned) == (BIG, 2**33, 2**32, 5)
    assert (decode.ttft_s, decode.itl_s, decode.queued_tasks) == (None, None, 0)


async def test_silent_workers_leave_the_view_and_are_cleaned_up(store: StateStore) -> None:
    await store.put_worker(worker(1, "prefill"))
    await store.enqueue(1, entry("a"))
    await asyncio.sleep(SETTINGS.stale_after_s + 0.1)
    await store.put_worker(worker(2))
    view = await store.view()
    assert not view.prefill
    assert [w.id for w in view.decode] == [2]
    assert [e.id for e in await store.queue(1)] == ["a"]
    await asyncio.sleep(SETTINGS.reap_after_s - SETTINGS.stale_after_s)
    await store.view()
    for _ in range(100):
        if not await store.queue(1):
            break
        await asyncio.sleep(0.02)
    assert await store.queue(1) == []


async def test_a_removed_worker_is_gone_with_its_queue_and_window(store: StateStore) -> None:
    await store.put_worker(worker(1, "prefill"))
    await store.enqueue(1, entry("a"))
    await store.observe([Sample(1, "ttft", 1.0, 1)])
    await store.remove_worker(1)
    assert (await store.view()).prefill == []
    assert await store.queue(1) == []
    await store.put_worker(worker(1, "prefill"))
    (again,) = (await store.view()).prefill
    assert (again.queued_s, again.queued_tasks, again.ttft_s) == (0.0, 0, None)


async def test_a_new_epoch_is_a_new_worker(store: StateStore) -> None:
    await store.put_worker(worker(epoch="old"))
    await store.enqueue(BIG, entry("a"))
    await store.observe([Sample(BIG, "itl", 1.0, 1)])
    await store.bind("s", BIG, "old", 500)
    await store.put_worker(worker(epoch="new"))
    (view,) = (await store.view()).decode
    assert (view.epoch, view.queued_tasks, view.itl_s, view.kv_promised) == ("new", 0, None, 0)
    assert await store.queue(BIG) == []


async def test_windows_hold_means_and_forget(store: StateStore) -> None:
    await store.put_worker(worker())
    await store.observe(
        [Sample(BIG, "ttft", 1.0, 1), Sample(BIG, "ttft", 2.0, 3), Sample(BIG, "itl", 0.5, 10), Sample(99, "itl", 1.0, 1)]
    )
    (view,) = (await store.view()).decode
    assert view.ttft_s == 0.75
    assert view.itl_s == 0.05
    for _ in range(6):  # nothing but heartbeats for longer than the window
        await asyncio.sleep(0.4)
        await store.put_worker(worker())
    (view,) = (await store.view()).decode
    assert (view.ttft_s, view.itl_s) == (None, None)


async def test_samples_of_different_seconds_are_averaged_together(make_store: Callable[[StoreSettings], StateStore]) -> None:
    store = make_store(dataclasses.replace(SETTINGS, window_s=60.0, stale_after_s=60.0))
    await store.connect()
    await store.put_worker(worker())
    await store.observe([Sample(BIG, "ttft", 1.0, 1)])
    await asyncio.sleep(1.05)
    await store.observe([Sample(BIG, "ttft", 2.0, 1)])
    await store.put_worker(worker())
    (view,) = (await store.view()).decode
    assert view.ttft_s == 1.5


async def test_promises_last_until_the_second_heartbeat(store: StateStore) -> None:
    await store.put_worker(worker(kv_free=1000))
    await store.bind("a", BIG, "e1", 300)
    await store.bind("b", BIG, "e1", 200)
    promised = []
    for _ in range(2):
        promised.append((await store.view()).decode[0].kv_promised)
        await store.put_worker(worker(kv_free=1000))
    promised.append((await store.view()).decode[0].kv_promised)
    assert promised == [500, 500, 0]


async def test_queue_figures_follow_the_queue(store: StateStore) -> None:
    await store.put_worker(worker(3, "prefill", running_s=0.5))
    for e in (entry("b", 1.25), entry("a", 0.5), entry("c", 2.0)):
        await store.enqueue(3, e)
    await store.enqueue(3, entry("a", 9.0))  # again: a retry
    (view,) = (await store.view()).prefill
    assert (view.queued_tasks, view.queued_s) == (3, 0.5 + 3.75)
    assert await store.queue(3) == [entry("b", 1.25), entry("a", 0.5), entry("c", 2.0)]

    await store.dequeue(3, "c", ["b", "a", "gone"])
    await store.dequeue(3, "c", ["b", "a"])  # again: counts once
    assert await store.queue(3) == [entry("b", 1.25, postponed=1), entry("a", 0.5, postponed=1)]
    await store.put_worker(worker(3, "prefill"))
    (view,) = (await store.view()).prefill
    assert (view.queued_tasks, view.queued_s) == (2, 1.75)
    await store.dequeue(3, "a")
    await store.dequeue(3, "b")
    (view,) = (await store.view()).prefill
    assert (view.queued_tasks, view.queued_s) == (0, 0.0)


async def test_an_unknown_workers_queue_stays_empty(store: StateStore) -> None:
    await store.enqueue(5, entry("a"))
    await store.dequeue(5, "a")
    assert await store.queue(5) == []


async def test_the_entry_as_the_policy_sees_it() -> None:
    task = entry("x", 0.75, postponed=2).task()
    assert (task.id, task.arrived_at, task.cost_s, task.ttft_target_s, task.postponed) == ("x", 1000.25, 0.75, 2.0, 2)


async def test_a_report_is_departures_samples_and_heartbeat_in_one(store: StateStore) -> None:
    await store.put_worker(worker(3, "prefill"))
    await store.put_worker(worker(4))
    for e in (entry("a", 0.5), entry("b", 0.25), entry("c", 2.0, priority=3)):
        store.enqueue_soon(3, e)
    row = worker(3, "prefill", running=1, running_s=0.125, context=777, link_s=0.5, kv_written=2**40)
    await store.report(row, [("a", ["c"]), ("b", ())], [Sample(3, "ttft", 3.0, 2), Sample(4, "itl", 0.5, 5)])
    (prefill,), (decode,) = (await store.view()).prefill, (await store.view()).decode
    assert (prefill.queued_tasks, prefill.queued_s, prefill.ttft_s) == (1, 2.125, 1.5)
    assert (prefill.running, prefill.context, prefill.link_s, prefill.kv_written) == (1, 777, 0.5, 2**40)
    assert decode.itl_s == 0.1
    assert await store.queue(3) == [entry("c", 2.0, postponed=1, priority=3)]
    await store.report(row)
    assert await store.queue(3) == [entry("c", 2.0, postponed=1, priority=3)]


async def test_a_report_makes_a_new_worker_known(store: StateStore) -> None:
    await store.report(worker(5, "prefill", "new"), [("never", ())], [])
    assert [w.epoch for w in (await store.view()).prefill] == ["new"]
