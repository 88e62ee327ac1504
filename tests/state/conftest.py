from __future__ import annotations

import asyncio
import dataclasses
import itertools
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import redis
import uvloop
from redis_server import RedisServer
from resilient_samples import QUICK
from state_samples import SETTINGS
from tls_relay import tls_relay

from ampd.state.base import StateStore
from ampd.state.memory import MemoryStore
from ampd.state.redis_store import RedisStore
from ampd.state.resilient import ResilientStore
from ampd.state.settings import StoreSettings

_graphs = itertools.count()


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop of ampd's processes: it may run timers before it reads sockets, as asyncio's own never does."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="ampd-test-") as folder:
        server = RedisServer(Path(folder))
        server.start()
        yield server
        server.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server, not started yet, that a test may stop."""
    server = RedisServer(tmp_path)
    yield server
    server.stop()


@pytest.fixture
def documented_rights(redis_server: RedisServer) -> Callable[[str], str]:
    """Makes a user with the rights that docs/state.md gives for a graph. Returns its password; its name is "ampd"."""

    def make(graph: str) -> str:
        page = (Path(__file__).parents[2] / "docs" / "state.md").read_text()
        rule = next(line for line in page.splitlines() if line.startswith("ACL SETUSER"))
        with redis.Redis(unix_socket_path=str(redis_server.socket)) as admin:
            admin.execute_command("ACL", "DELUSER", "ampd")
            admin.execute_command(*[part.replace("<password>", "p w:%").replace("<graph>", graph) for part in rule.split()])
        return "p w:%"

    return make


@pytest.fixture(params=["memory", "redis", "tls", "resilient"])
async def make_store(
    request: pytest.FixtureRequest, redis_server: RedisServer, documented_rights: Callable[[str], str], tmp_path: Path
) -> AsyncIterator[Callable[[StoreSettings], StateStore]]:
    """Makes unconnected stores of one kind; Redis ones have a graph of their own each.

    "tls" is Redis over TLS, with a password, as a user who has the documented rights and no others.
    """
    made: list[StateStore] = []
    async with AsyncExitStack() as stack:
        secure = await stack.enter_async_context(tls_relay(redis_server.socket, tmp_path)) if request.param == "tls" else ""

        def make(settings: StoreSettings) -> StateStore:
            store: StateStore
            graph = f"test-{next(_graphs)}"
            if request.param == "memory":
                store = MemoryStore(settings)
            elif request.param == "tls":
                url = f"rediss://ampd@{secure}/0?ssl_ca_certs={tmp_path / 'redis.crt'}"
                store = RedisStore(url, documented_rights(graph), graph, settings)
            else:
                store = RedisStore(redis_server.url, None, graph, settings)
                if request.param == "resilient":
                    store = ResilientStore(store, settings)
            made.append(store)
            return store

        yield make
        for store in made:
            await store.close()


@pytest.fixture
async def store(make_store: Callable[[StoreSettings], StateStore]) -> StateStore:
    store = make_store(SETTINGS)
    await store.connect()
    return store


@pytest.fixture
def server(own_server: RedisServer) -> RedisServer:
    own_server.start()
    return own_server


@pytest.fixture
async def connect(server: RedisServer) -> AsyncIterator[Callable[..., ResilientStore]]:
    """Resilient stores of one graph, each as in a process of its own."""
    made: list[ResilientStore] = []
    graph = f"resilient-{next(_graphs)}"

    def make(**changes: float) -> ResilientStore:
        settings = dataclasses.replace(QUICK, **changes)  # type: ignore[arg-type]
        made.append(ResilientStore(RedisStore(server.url, None, graph, settings), settings))
        return made[-1]

    yield make
    for store in made:
        await store.close()
