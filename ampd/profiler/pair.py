"""One prefill and one decode engine of a graph, started in this process, without Dynamo or Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from ampd.config import Graph, Worker
from ampd.errors import ConfigError
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
    workers = _quiet(first_worker(graph, "prefill")), _quiet(first_worker(graph, "decode"))
    model = await asyncio.to_thread(resolve_model, graph)
    graph = _as_measured(graph, model)
    ports = free_ports(graph.transport.host, 2)
    prefill, decode = (VllmEngine(graph, worker, 0, port) for worker, port in zip(workers, ports, strict=True))
    try:
        await prefill.start()
        await decode.start()
        yield EnginePair(prefill, decode, graph, model)
    finally:
        await asyncio.gather(prefill.stop(), decode.stop())


def first_worker(graph: Graph, role: str) -> Worker:
    """The group whose engine is measured. Raises ConfigError when there is none, or it is simulated."""
    for index, worker in enumerate(graph.workers):
        if worker.role == role:
            if worker.engine != "vllm":
                raise ConfigError(f"workers.{index}.engine = {worker.engine!r}: only engine: vllm can be measured")
            return worker
    raise ConfigError(f"workers: profiling measures KV reads both ways, so the graph needs a worker with role: {role}")


def _quiet(worker: Worker) -> Worker:
    """With vLLM's log at errors only, unless the graph sets its level: it would tear the progress bar."""
    return worker.model_copy(update={"env": {"VLLM_LOGGING_LEVEL": "ERROR", **worker.env}})


def _as_measured(graph: Graph, model: Path) -> Graph:
    """Without the profile that is about to be replaced, which may be of other engines, and with chunks as they come: a chunk that
    the batch's slack bounds would be of another size than the one to be measured.
    """
    return graph.model_copy(
        update={
            "model": graph.model.model_copy(update={"path": str(model)}),
            "policy": graph.policy.model_copy(update={"local_prefill": "chunked"}),
            "profile": None,
        }
    )
