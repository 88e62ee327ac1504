"""Dead workers are cleaned up once, whoever notices, and a worker that restarted or came back is not taken for a dead one."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import logging
from collections.abc import AsyncIterator, Callable

import pytest
import redis
from redis_server import RedisServer
from state_samples import BIG, SETTINGS, entry, worker

from ampd.state.base import Sample
from ampd.state.redis_store import RedisStore

_graphs = itertools.count()
QUICK = dataclasses.replace(SETTINGS, stale_after_s=0.3, reap_after_s=0.6)


@pytest.fixture
async def make_store(redis_server: RedisServer) -> AsyncIterator[Callable[[], RedisStore]]:
    """Stores of one graph, each as in a process of its own."""
    made: list[RedisStore] = []
    graph = f"reaping-{next(_graphs)}"

    def make() -> RedisStore:
        made.append(RedisStore(redis_server.url, None, graph, QUICK))
        return made[-1]

    yield make
    for store in made:
        await store.close()


async def test_of_many_who_notice_one_cleans(
    make_store: Callable[[], RedisStore], redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ampd.state")
    stores = [make_store() for _ in range(4)]
    for store in stores:
        await store.connect()
    await stores[0].put_worker(worker(1, "prefill"))
    await stores[0].enqueue(1, entry("a"))
    await stores[0].observe([Sample(1, "ttft", 1.0, 1)])
    for store in stores:
        assert [w.id for w in (await store.view()).prefill] == [1]
    await asyncio.sleep(QUICK.reap_after_s + 0.1)
    await asyncio.gather(*(store.view() for store in stores for _ in range(5)))
    admin = redis.Redis(unix_socket_path=str(redis_server.socket))
    for _ in range(200):
        if not admin.exists(stores[0]._queue_key(1), stores[0]._load):
            break
        await asyncio.sleep(0.01)
    for store in stores:
        assert (await store.view()).prefill == []
    assert not admin.exists(stores[0]._queue_key(1), stores[0]._window_key(1), stores[0]._load, stores[0]._changes)
    await asyncio.sleep(0.05)
    assert len([r for r in caplog.records if "worker 1 has been silent" in r.getMessage()]) == 1


async def test_a_worker_that_restarts_before_the_cleaning_is_left_alone(make_store: Callable[[], RedisStore]) -> None:
    one, other = make_store(), make_store()
    await one.connect()
    await other.connect()
    await one.put_worker(worker(1, "prefill", "old"))
    await one.view()
    await asyncio.sleep(QUICK.reap_after_s + 0.1)
    await other.put_worker(worker(1, "prefill", "new"))
    assert not await one._remove(1, QUICK.reap_after_s)  # what `one` saw is long out of date
    (view,) = (await one.view()).prefill
    assert view.epoch == "new"


async def test_of_two_who_find_a_binding_dead_one_replaces_it(make_store: Callable[[], RedisStore]) -> None:
    one, other = make_store(), make_store()
    await one.connect()
    await other.connect()
    await one.put_worker(worker(1))
    await other.put_worker(worker(2))
    await one.bind("s", BIG, "dead", 10)
    rows = await asyncio.gather(one.bind("s", 1, "e1", 10, replace="dead"), other.bind("s", 2, "e1x", 20, replace="dead"))
    assert len({(r.worker, r.epoch) for r in rows}) == 1
    promised = {w.id: w.kv_promised for w in (await one.view()).decode}
    assert sorted(promised.values()) == sorted([0, 10 if rows[0].worker == 1 else 20])


async def test_a_silent_worker_that_speaks_again_is_seen_again(make_store: Callable[[], RedisStore]) -> None:
    store = make_store()
    await store.connect()
    await store.put_worker(worker(1))
    await store.put_worker(worker(2))
    await store.view()
    await asyncio.sleep(QUICK.stale_after_s + 0.05)
    await store.put_worker(worker(2))
    assert [w.id for w in (await store.view()).decode] == [2]
    await store.enqueue(1, entry("a"))  # a change that is no heartbeat
    assert [w.id for w in (await store.view()).decode] == [2]
    await store.put_worker(worker(1))
    await store.put_worker(worker(2))
    assert sorted(w.id for w in (await store.view()).decode) == [1, 2]
