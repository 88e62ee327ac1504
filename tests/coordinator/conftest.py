from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "state"))  # the Redis child of the state tests

from redis_server import RedisServer
from sim_cluster import SimCluster

from ampd.state.base import StateStore
from ampd.state.memory import MemoryStore
from ampd.state.redis_store import RedisStore
from ampd.state.settings import StoreSettings

_graphs = itertools.count()


@pytest.fixture(scope="session")
def redis_child() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory(prefix="ampd-test-") as folder:
        server = RedisServer(Path(folder))
        server.start()
        yield server
        server.stop()


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest, redis_child: RedisServer) -> AsyncIterator[StateStore]:
    settings = StoreSettings(deadline_s=5.0, stale_after_s=1000.0)
    if request.param == "memory":
        store: StateStore = MemoryStore(settings)
    else:
        store = RedisStore(redis_child.url, None, f"coordinator-{next(_graphs)}", settings)
    await store.connect()
    yield store
    await store.close()


@pytest.fixture
async def cluster(store: StateStore) -> SimCluster:
    """Two prefill and two decode workers."""
    cluster = SimCluster(store)
    for id, role in ((11, "prefill"), (12, "prefill"), (21, "decode"), (22, "decode")):
        await cluster.add(id, role)
    return cluster
