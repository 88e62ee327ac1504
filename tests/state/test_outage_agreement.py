"""Several processes and one Redis that is away, or comes back empty: a session has one decode worker, and none is forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import redis
from msgspec.structs import replace
from redis_server import RedisServer
from resilient_samples import QUICK, back, first_round, opened
from state_samples import BIG, handle, worker

from ampd.state.resilient import ResilientStore


async def test_two_processes_never_end_with_two_bindings(connect: Callable[..., ResilientStore], server: RedisServer) -> None:
    one, other = connect(), connect()
    for store in (one, other):
        await store.connect()
    server.stop()
    assert (await one.bind("s", 1, "e1", 0)).worker == 1
    assert (await other.bind("s", 2, "e2", 0)).worker == 2
    server.start()
    await back(one)
    await back(other)
    server.stop()  # what each knows by itself
    assert (await opened(one)).epoch == (await opened(other)).epoch


async def test_openings_are_unsure_until_all_have_written_back(connect: Callable[..., ResilientStore], server: RedisServer) -> None:
    store = connect()
    await store.connect()
    await store.put_worker(worker())
    assert not (await store.open_round("new")).unsure
    server.stop()
    assert (await store.open_round("new")).unsure
    server.start()
    await back(store)
    assert (await store.open_round("new")).unsure
    known = await store.bind("found", 7, "e7", 0)  # found at its worker: no rule says otherwise
    assert known.worker == 7
    await asyncio.sleep(QUICK.stale_after_s + 0.1)
    assert not (await store.open_round("new")).unsure


async def test_a_binding_made_elsewhere_holds_while_redis_is_away(
    connect: Callable[..., ResilientStore], server: RedisServer
) -> None:
    one, other = connect(), connect()
    for store in (one, other):
        await store.connect()
        await store.open_round("anything")
    for id in range(1, 6):
        await one.put_worker(worker(id, epoch=f"e{id}", kv_total=1000))
    bound = {f"s{i}": (await one.bind(f"s{i}", 1 + i % 5, f"e{1 + i % 5}", 10)).worker for i in range(150)}
    for _ in range(3):  # more than one answer carries
        await other.open_round("anything")
    server.stop()
    for session, worker_id in bound.items():
        assert (await opened(other, session)).worker == worker_id
    assert other.away


async def test_a_session_that_is_merely_unknown_here_is_not_ended(
    connect: Callable[..., ResilientStore], server: RedisServer
) -> None:
    one, other = connect(), connect()
    for store in (one, other):
        await store.connect()
    await first_round(one)
    redis.Redis(unix_socket_path=str(server.socket)).client_pause(2500)
    await asyncio.gather(*(other.view() for _ in range(3)))
    assert other.away
    assert (await other.open_round("s")).session is None
    await back(other)
    assert (await opened(one)).handle == handle("pin-1")


async def test_new_sessions_are_bound_alike_while_redis_is_away(
    connect: Callable[..., ResilientStore], server: RedisServer
) -> None:
    stores = [connect(), connect()]
    for store in stores:
        await store.connect()
    for id in range(1, 6):
        await stores[0].put_worker(worker(id, epoch=f"e{id}", kv_total=1000, draining=id == 5))
    await stores[0].put_worker(worker(6, epoch="e6", kv_total=10))
    for store in stores:
        await store.view()
    server.stop()
    for store in stores:
        await store.view()
    for i in range(8):  # found at its worker: no rule says otherwise
        assert (await stores[0].bind(f"found-{i}", 2, "e2", 0)).worker == 2
    owners = []
    for i in range(40):
        rows = [await store.bind(f"s{i}", 1 + n, f"e{1 + n}", 100) for n, store in enumerate(stores)]
        assert rows[0].worker == rows[1].worker
        assert rows[0].epoch == f"e{rows[0].worker}"
        owners.append(rows[0].worker)
    assert set(owners) == {1, 2, 3, 4}
    server.start()
    for store in stores:
        await back(store)
    assert [(await opened(stores[1], f"s{i}")).worker for i in range(40)] == owners


async def test_thousands_of_sessions_come_back_without_holding_anybody_up(
    connect: Callable[..., ResilientStore], server: RedisServer
) -> None:
    stores = [connect(), connect()]
    for store in stores:
        await store.connect()
    rows = {}
    for i in range(2000):
        store = stores[i % 2]
        row = replace(await store.bind(f"s{i}", BIG, "e1", 10), round=1, tokens=4096, handle=handle(f"pin-{i}"))
        assert await store.close_round(f"s{i}", row, bytes([i % 256]) * 2048) is None
        rows[f"s{i}"] = row
    server.stop()
    server.start()
    waits = []
    for _ in range(2):
        await asyncio.gather(*(store.open_round("s0") for store in stores))
    while any(store.away for store in stores):
        started = asyncio.get_running_loop().time()
        await stores[0].open_round("unheard of")
        await asyncio.sleep(0.001)
        waits.append(asyncio.get_running_loop().time() - started)
    assert await stores[0].sessions() == 2000
    for i in range(1, 2000, 7):
        found = await stores[(i + 1) % 2].open_round(f"s{i}")
        assert found.session is not None
        assert (found.session.worker, found.session.handle) == (BIG, rows[f"s{i}"].handle)
        assert found.ledger == bytes([i % 256]) * 2048
    assert len(waits) > 1
