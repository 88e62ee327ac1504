"""Redis stops, and comes back with or without what it held: serving goes on, is counted, and is written back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import redis
from msgspec.structs import replace
from redis_server import RedisServer
from resilient_samples import QUICK, back, first_round, opened
from state_samples import BIG, entry, handle, worker

from ampd.state.resilient import ResilientStore


async def test_rounds_go_on_without_redis(connect: Callable[..., ResilientStore], server: RedisServer) -> None:
    store = connect()
    await store.connect()
    await store.put_worker(worker(kv_free=1000))
    await store.put_worker(worker(7, "prefill"))
    await first_round(store)
    await store.view()
    assert store.degraded == 0
    server.stop()

    view = await store.view()
    assert [w.id for w in (*view.decode, *view.prefill)] == [BIG, 7]
    again = await store.open_round("s")
    assert again.session is not None
    assert again.degraded
    assert (again.session.worker, again.session.handle, again.ledger) == (BIG, handle("pin-1"), b"ledger-1")
    assert (await opened(store)).handle is None
    assert await store.close_round("s", replace(again.session, round=2, handle=handle("pin-2")), b"ledger-2") is None
    assert (await store.open_round("new")).session is None
    bound = await store.bind("new", BIG, "e1", 300)
    assert (await store.bind("new", 7, "x", 300)).worker == bound.worker == BIG
    assert (await store.view()).decode[0].kv_promised >= 300
    await store.put_worker(worker())
    await store.enqueue(7, entry("a"))
    await store.observe([])
    assert await store.queue(7) == []
    assert await store.sessions() == 2
    assert store.away
    assert store.degraded >= 10


async def test_an_empty_redis_is_filled_again(connect: Callable[..., ResilientStore], server: RedisServer) -> None:
    one, other = connect(), connect()
    await one.connect()
    await other.connect()
    await one.put_worker(worker())
    await first_round(one, "known")
    await first_round(one, "open")
    flying = await opened(one, "open")
    await first_round(one, "ended")
    await first_round(one, "left")
    left = await opened(one, "left")
    server.stop()
    await one.view()
    await other.view()
    during = await opened(one, "known")
    await one.close_round("known", replace(during, round=2, handle=handle("pin-2")), b"ledger-2")
    await one.end_session("ended")
    server.start()
    await back(one)
    await back(other)

    assert [w.id for w in (await other.view()).decode] == [BIG]
    found = await other.open_round("known")
    assert found.session is not None
    assert (found.session.worker, found.session.round, found.session.handle, found.ledger) == (BIG, 2, handle("pin-2"), b"ledger-2")
    assert (await other.open_round("ended")).session is None
    # A round that was under way closes as if nothing had happened.
    assert await one.close_round("open", replace(flying, round=2, handle=handle("pin-3")), b"ledger-3") is None
    assert (await opened(other, "open")).handle == handle("pin-3")
    # One that a later round has overtaken is refused.
    later = await opened(other, "left")
    assert await other.close_round("left", replace(later, round=3, handle=handle("pin-5")), b"ledger-3") is None
    assert await one.close_round("left", replace(left, round=2, handle=handle("pin-6")), b"ledger-2") == handle("pin-6")
    # The session's next rounds go on.
    await one.close_round("known", replace(found.session, round=3, handle=handle("pin-4")), b"ledger-4")
    assert (await opened(one, "known")).handle == handle("pin-4")


async def test_a_restart_between_two_calls_is_noticed(connect: Callable[..., ResilientStore], server: RedisServer) -> None:
    store, late = connect(), connect()
    await store.connect()
    await late.connect()
    await store.put_worker(worker())
    await first_round(store, "s")
    await first_round(late, "of late")
    await store.view()
    await late.view()
    server.stop()
    server.start()
    assert (await opened(store)).worker == BIG
    await back(store)
    # Redis holds workers and sessions again, but not those of the other process.
    assert (await opened(late, "of late")).worker == BIG
    await back(late)
    assert (await opened(store, "of late")).worker == BIG


async def test_workers_are_kept_until_their_next_heartbeat(connect: Callable[..., ResilientStore], server: RedisServer) -> None:
    worker_process, coordinator = connect(), connect()
    for store in (worker_process, coordinator):
        await store.connect()
    await worker_process.put_worker(worker())
    await coordinator.view()
    server.stop()
    server.start()
    await asyncio.sleep(0.1)  # the connection learns of its end, so that the next call simply opens another
    assert [w.id for w in (await coordinator.view()).decode] == [BIG]
    await back(coordinator)
    served = coordinator.degraded
    assert [w.id for w in (await coordinator.view()).decode] == [BIG]
    await asyncio.sleep(QUICK.stale_after_s + 0.1)
    assert (await coordinator.view()).decode == []
    assert coordinator.degraded == served


async def test_a_redis_that_only_paused_keeps_its_own(connect: Callable[..., ResilientStore], server: RedisServer) -> None:
    store, other = connect(), connect()
    await store.connect()
    await other.connect()
    await store.put_worker(worker())
    await store.put_worker(worker(7, "prefill"))
    await store.enqueue(7, entry("a"))
    await first_round(store)
    await first_round(store, "t")
    await store.view()
    admin = redis.Redis(unix_socket_path=str(server.socket))
    admin.client_pause(2500)
    await asyncio.gather(*(store.view() for _ in range(3)))
    assert store.away
    await store.dequeue(7, "a")
    during = await opened(store)
    await store.close_round("s", replace(during, round=2, handle=handle("pin-2")), b"ledger-2")
    ended = await store.end_session("t")
    assert ended is not None
    assert ended.handle == handle("pin-1")
    await back(store)
    assert await other.sessions() == 1
    assert await store.queue(7) == []
    assert [w.id for w in (await store.view()).decode] == [BIG]
    found = await opened(other)
    assert (found.round, found.handle) == (2, handle("pin-2"))
    served = store.degraded
    await store.view()
    assert store.degraded == served


async def test_a_slow_answer_is_waited_for_and_counted(connect: Callable[..., ResilientStore], server: RedisServer) -> None:
    store = connect(deadline_s=0.05)  # an opening may take 5 s
    await store.connect()
    await first_round(store)
    redis.Redis(unix_socket_path=str(server.socket)).client_pause(200)
    slow = await store.open_round("s")
    assert slow.session is not None
    assert (slow.session.handle, slow.degraded, slow.unsure) == (handle("pin-1"), False, False)
    assert (store.away, store.degraded) == (False, 0)
    assert store.slow >= 1


async def test_what_was_promised_in_a_hiccup_is_promised_no_longer_after_it(
    connect: Callable[..., ResilientStore], server: RedisServer
) -> None:
    """The store makes its own promise when it gets the binding; ours beside it would fill the worker for ever."""
    store = connect(deadline_s=0.004)  # a change may take 0.4 s
    await store.connect()
    await store.put_worker(worker(kv_free=1000))
    await store.view()
    admin = redis.Redis(unix_socket_path=str(server.socket))
    admin.client_pause(800)
    await store.bind("s", BIG, "e1", 300)
    assert (store.away, store.degraded) == (False, 1)
    assert (await store.view()).decode[0].kv_promised == 300  # from the last view
    await asyncio.sleep(1.5)  # answers again, and has been told
    assert (await store.view()).decode[0].kv_promised == 300
    admin.client_pause(100)
    assert (await store.view()).decode[0].kv_promised == 300
    assert store.degraded == 3  # so that was the last view once more


async def test_one_answer_that_is_too_late_is_counted_and_forgiven(
    connect: Callable[..., ResilientStore], server: RedisServer
) -> None:
    store, other = connect(deadline_s=0.004), connect()  # an opening may take 0.4 s
    await store.connect()
    await other.connect()
    await first_round(store)
    redis.Redis(unix_socket_path=str(server.socket)).client_pause(800)
    late = await store.open_round("s")
    assert late.degraded
    assert late.unsure
    assert late.session is not None
    assert late.session.handle == handle("pin-1")
    assert (store.away, store.degraded) == (False, 1)
    await asyncio.sleep(0.8)  # the late answer has come, and its handle has been put back
    unused = await store.close_round("s", replace(late.session, round=2, handle=handle("pin-2")), b"ledger-2")
    assert unused in (None, handle("pin-1"))
    found = await other.open_round("s")
    assert found.session is not None
    assert (found.session.round, found.session.handle, found.ledger) == (2, handle("pin-2"), b"ledger-2")
    assert store.degraded == 1
