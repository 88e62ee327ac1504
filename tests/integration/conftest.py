"""One complete graph for all integration tests: real frontend, two Coordinators, real engines, real Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from whole_graph import WholeGraph

from ampd.bench.client import Client
from ampd.config import load_graph
from ampd.launch import running_graph
from ampd.state.factory import open_store

ROOT = Path(__file__).parents[2]
SETTINGS = [
    "coordinator.replicas=2",
    "sessions.idle_ttl_s=20",
    "transport.read_grace_s=2",
    "transport.ucx_tls=tcp",
]


@pytest.fixture(scope="session")
async def graph(tiny_model: Path) -> AsyncIterator[WholeGraph]:
    config = load_graph(ROOT / "configs/tiny-test.yaml", [*SETTINGS, f"model.path={tiny_model}"])
    async with running_graph(config) as running, Client(running.url, config.model.served_name, timeout_s=120) as client:
        store = open_store(running.graph.model_copy(update={"state": config.state.model_copy(update={"url": running.state_url})}))
        await store.connect()
        whole = WholeGraph(running, client, store)
        await whole.settled()
        yield whole
        await store.close()


@pytest.fixture(autouse=True)
async def nothing_left(graph: WholeGraph) -> AsyncIterator[None]:
    """Every test closes its sessions; then no KV block is in use, as at the start, and no session, task or pin is left."""
    yield
    await graph.settled()
