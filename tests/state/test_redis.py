"""What only the Redis store can do wrong: connections, deadlines, cancellation, rights, restarts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import redis
from msgspec.structs import replace
from redis_server import RedisServer
from state_samples import BIG, SETTINGS, entry, handle, worker

from ampd.config import build_graph
from ampd.errors import ConfigError, SetupError, StateError
from ampd.state.base import SCHEMA, SessionRow
from ampd.state.factory import open_store
from ampd.state.redis_store import RedisStore

_graphs = itertools.count()
Connect = Callable[..., AbstractAsyncContextManager[RedisStore]]


@pytest.fixture
def connect(redis_server: RedisServer) -> Connect:
    @asynccontextmanager
    async def make(graph: str | None = None, url: str = redis_server.url, **changes: float) -> AsyncIterator[RedisStore]:
        store = RedisStore(url, None, graph or f"redis-{next(_graphs)}", dataclasses.replace(SETTINGS, **changes))  # type: ignore[arg-type]
        try:
            await store.connect()
            yield store
        finally:
            await store.close()

    return make


@pytest.fixture
def admin(redis_server: RedisServer) -> redis.Redis:
    return redis.Redis(unix_socket_path=str(redis_server.socket), decode_responses=True)


def pause(admin: redis.Redis, seconds: float) -> None:
    """Keep every client waiting for its reply."""
    admin.client_pause(int(seconds * 1000))


async def a_session_with_a_handle(store: RedisStore) -> SessionRow:
    row = replace(await store.bind("s", BIG, "e1", 0), handle=handle())
    await store.close_round("s", row, b"ledger")
    return row


async def test_connections_are_two_whatever_the_number_of_cancelled_calls(connect: Connect, admin: redis.Redis) -> None:
    before = len(admin.client_list())
    async with connect() as store:
        pause(admin, 0.3)
        calls = [asyncio.create_task(store.view()) for _ in range(30)]
        await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.gather(*(store.view() for _ in range(30)))
        assert len(admin.client_list()) <= before + 2


@pytest.mark.parametrize("how", ["cancelled", "late"])
async def test_the_handle_of_an_opening_nobody_waited_for_comes_back(connect: Connect, admin: redis.Redis, how: str) -> None:
    graph = f"redis-{next(_graphs)}"
    async with connect(graph) as store, connect(graph, deadline_s=0.001) as hasty:
        await a_session_with_a_handle(store)
        pause(admin, 0.3)
        if how == "cancelled":
            call = asyncio.create_task(store.open_round("s"))
            await asyncio.sleep(0.05)
            call.cancel()
        else:
            with pytest.raises(StateError):
                await hasty.open_round("s")
        found = None
        for _ in range(100):
            await asyncio.sleep(0.02)
            if (
                admin.hexists(f"{{ampd:{graph}}}:session:s", "handle")
                and int(admin.hget(f"{{ampd:{graph}}}:session:s", "version") or 0) > 1
            ):
                found = (await store.open_round("s")).session
                break
        assert found is not None
        assert found.handle == handle()


async def test_a_silent_redis_costs_no_more_than_the_deadline(own_server: RedisServer, connect: Connect) -> None:
    own_server.start()
    async with connect(url=own_server.url, deadline_s=0.05) as store:
        own_server.freeze()
        with pytest.raises(StateError, match="did not answer within 50 ms"):  # while it is still silent
            await store.view()
        own_server.thaw()
        for _ in range(200):  # it recovers by itself
            with contextlib.suppress(StateError):
                await store.view()
                return
            await asyncio.sleep(0.05)
        pytest.fail("the store did not recover")


async def test_forgotten_scripts_are_sent_again(connect: Connect, admin: redis.Redis) -> None:
    async with connect() as store:
        await store.put_worker(worker())
        admin.script_flush()
        assert [w.id for w in (await store.view()).decode] == [BIG]
        admin.script_flush()
        assert (await store.open_round("s")).session is None


async def test_a_redis_that_comes_back_empty_is_used_again(own_server: RedisServer, connect: Connect) -> None:
    server = own_server
    server.start()
    async with connect(url=server.url) as store:
        await store.put_worker(worker())
        server.stop()
        with pytest.raises(StateError):
            await store.view()
        server.start()
        assert (await store.view()).decode == []
        await store.put_worker(worker())
        assert [w.id for w in (await store.view()).decode] == [BIG]


async def test_every_key_has_the_graphs_tag_and_sessions_end(connect: Connect, admin: redis.Redis) -> None:
    before = set(admin.keys("*"))
    async with connect("tagged", idle_ttl_s=60.0) as store:
        await store.put_worker(worker())
        await store.enqueue(BIG, entry("a"))
        await a_session_with_a_handle(store)
        keys = set(admin.keys("*")) - before
        assert keys == {f"{{ampd:tagged}}:{k}" for k in ("schema", "load", "changes", "bindings", f"queue:{BIG}", "session:s")}
        assert 50_000 < admin.pttl("{ampd:tagged}:session:s") <= 60_000
        await store.end_session("s")
        await store.remove_worker(BIG)
        assert set(admin.keys("*")) - before == {"{ampd:tagged}:schema", "{ampd:tagged}:bindings"}
        assert 50_000 < admin.pttl("{ampd:tagged}:bindings") <= 60_000


async def test_two_graphs_share_nothing(connect: Connect) -> None:
    async with connect() as one, connect() as other:
        await one.put_worker(worker())
        await a_session_with_a_handle(one)
        assert (await other.view()).decode == []
        assert (await other.open_round("s")).session is None
        assert (await one.sessions(), await other.sessions()) == (1, 0)


async def test_rows_that_are_not_understood_are_left_out(connect: Connect, admin: redis.Redis) -> None:
    async with connect("mixed") as store:
        await store.put_worker(worker(1))
        await store.put_worker(replace(worker(2), schema=SCHEMA + 1))
        await store.put_worker(worker(3))
        admin.hset("{ampd:mixed}:load", "3", "nonsense")
        assert [w.id for w in (await store.view()).decode] == [1]


async def test_another_schema_is_refused_at_start(connect: Connect, admin: redis.Redis) -> None:
    admin.set("{ampd:future}:schema", "99 someone")
    with pytest.raises(
        SetupError, match=r"graph 'future' holds state of schema 99, this ampd speaks 2; delete the keys \{ampd:future\}"
    ):
        async with connect("future"):
            pass


async def test_an_unreachable_redis_is_one_clear_line(tmp_path: Path) -> None:
    for url in (f"unix://{tmp_path}/none.sock", "redis://:secret@127.0.0.1:1/0"):
        store = RedisStore(url, None, "g", SETTINGS)
        with pytest.raises(SetupError, match=r"state\.url .*cannot reach Redis") as e:
            await store.connect()
        assert "\n" not in str(e.value)
        assert "secret" not in str(e.value)
        await store.close()
    with pytest.raises(ConfigError, match="use redis://, rediss:// or unix://"):
        RedisStore("http://127.0.0.1", None, "g", SETTINGS)


async def test_passwords(own_server: RedisServer) -> None:
    server = own_server
    server.start(password="right")
    for password in (None, "wrong"):
        store = RedisStore(server.url, password, "g", SETTINGS)
        with pytest.raises(SetupError, match=r"refused the password .*state\.password_env"):
            await store.connect()
        await store.close()
    store = RedisStore(server.url, "right", "g", SETTINGS)
    await store.connect()
    assert (await store.view()).decode == []
    await store.close()


async def test_another_graphs_keys_are_out_of_the_documented_rights(
    redis_server: RedisServer, documented_rights: Callable[[str], str]
) -> None:
    store = RedisStore(f"unix://ampd@{redis_server.socket}", documented_rights("acl"), "not-acl", SETTINGS)
    with pytest.raises(SetupError, match="Redis refused a command"):
        await store.connect()
    await store.close()


def test_the_store_of_a_configuration() -> None:
    def graph(**state: object):  # type: ignore[no-untyped-def]
        return build_graph({"workers": [{"name": "d", "role": "decode"}], "state": state})

    with pytest.raises(ConfigError, match=r"state\.url 'embedded' is resolved by `ampd serve`"):
        open_store(graph())
    with pytest.raises(ConfigError, match=r"state\.password_env 'SECRET': that environment variable is not set"):
        open_store(graph(url="redis://h", password_env="SECRET"), {})
    store = open_store(graph(url="redis://h", password_env="SECRET"), {"SECRET": "x"})
    assert (store.away, store.degraded) == (False, 0)
