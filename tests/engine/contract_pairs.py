"""A simulated prefill and decode engine beside the vLLM ones, for the tests that both have to pass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from engine_pair import Pair, graph, started

from ampd.config import Graph
from ampd.workers.engines.sim import SimEngine
from ampd.workers.engines.sim_link import Fabric

SIM = {"kv_tokens": 40_000, "kv_bytes_per_token": 2048, "speed": 20.0}


def sim_graph(folder: Path, sim: dict[str, Any] | None = None, **sections: Any) -> Graph:
    """The vLLM pair's graph with simulated engines, twenty times as fast as the built-in cost model."""
    workers = [
        {"name": role, "role": role, "engine": "sim", "prefill_chunk": chunk, "sim": {**SIM, **(sim or {})}}
        for role, chunk in (("prefill", 256), ("decode", 512))
    ]
    return graph(folder, workers=workers, **sections)


@asynccontextmanager
async def sim_pair(graph: Graph, one_process: bool = False) -> AsyncIterator[Pair]:
    """Two engines that read each other's KV over TCP, or directly as those of one process do."""
    fabrics = [Fabric("127.0.0.1", 0, 2.0) for _ in range(2)]
    engines = [
        SimEngine(graph, worker, 0, fabric)
        for worker, fabric in zip(graph.workers, fabrics[:1] * 2 if one_process else fabrics, strict=True)
    ]
    async with started(*engines):
        yield Pair(*engines)
