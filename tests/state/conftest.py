from __future__ import annotations

import itertools
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from redis_server import RedisServer
from state_samples import SETTINGS

from ampd.state.base import StateStore
from ampd.state.memory import MemoryStore
from ampd.state.redis_store import RedisStore
from ampd.state.resilient import ResilientStore
from ampd.state.settings import StoreSettings

_graphs = itertools.count()


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


@pytest.fixture(params=["memory", "redis", "resilient"])
async def make_store(
    request: pytest.FixtureRequest, redis_server: RedisServer
) -> AsyncIterator[Callable[[StoreSettings], StateStore]]:
    """Makes unconnected stores of one kind; Redis ones have a graph of their own each."""
    made: list[StateStore] = []

    def make(settings: StoreSettings) -> StateStore:
        store: StateStore
        if request.param == "memory":
            store = MemoryStore(settings)
        else:
            store = RedisStore(redis_server.url, None, f"test-{next(_graphs)}", settings)
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
