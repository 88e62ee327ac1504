"""One prefill and one decode engine for the whole run; a plain vLLM engine tells beforehand what is right."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from engine_pair import Pair, engine, free_ports, graph, started
from plain_engine import SESSIONS, Plain

from ampd.config import Graph


@pytest.fixture(scope="session")
def pair_graph(tiny_model: Path) -> Graph:
    return graph(tiny_model)


@pytest.fixture(scope="session")
async def reference(tiny_model: Path) -> dict[str, list[list[int]]]:
    """The tokens of every round of `SESSIONS`, from stock vLLM without connector, scheduler class or prefix cache."""
    async with Plain(tiny_model) as plain:
        return {name: await plain.session(increments) for name, increments in SESSIONS.items()}


@pytest.fixture(scope="session")
async def engines(pair_graph: Graph) -> AsyncIterator[Pair]:
    prefill_port, decode_port = free_ports(2)
    pair = Pair(engine(pair_graph, "prefill", prefill_port), engine(pair_graph, "decode", decode_port))
    async with started(pair.prefill, pair.decode):
        yield pair


@pytest.fixture
async def pair(engines: Pair) -> AsyncIterator[Pair]:
    """The engines, which hold no KV afterwards: every test ends what it pinned."""
    yield engines
    await engines.idle()
