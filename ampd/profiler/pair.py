"""One prefill and one decode engine of a graph, started in this process, without Dynamo or Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ampd.config import Graph, Worker
from ampd.errors import SetupError
from ampd.launch.models import resolve_model
from ampd.launch.preflight import check_cores, free_ports
from ampd.workers.engines.base import Engine


@dataclass(frozen=True, slots=True)
class EnginePair:
    """Started engines. `model` is the model folder."""

    prefill: Engine
    decode: Engine
    graph: Graph
    model: Path


@asynccontextmanager
async def engine_pair(graph: Graph) -> AsyncIterator[EnginePair]:
    """Start the first prefill and the first decode worker of a graph. Raises ConfigError or SetupError."""
    from ampd.workers.engines.vllm import VllmEngine

    check_cores(graph)
    model = await asyncio.to_thread(resolve_model, graph)
    graph = graph.model_copy(update={"model": graph.model.model_copy(update={"path": str(model)})})
    ports = free_ports(graph.transport.host, 2)
    prefill = VllmEngine(graph, _first(graph, "prefill"), 0, ports[0])
    decode = VllmEngine(graph, _first(graph, "decode"), 0, ports[1])
    try:
        await prefill.start()
        await decode.start()
        yield EnginePair(prefill, decode, graph, model)
    finally:
        await asyncio.gather(prefill.stop(), decode.stop())


def _first(graph: Graph, role: str) -> Worker:
    for worker in graph.workers:
        if worker.role == role:
            return worker
    raise SetupError(f"workers: profiling measures KV reads both ways, so the graph needs a worker with role: {role}")
