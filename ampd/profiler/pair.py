"""One prefill and one decode engine of a graph, started in this process, without Dynamo or Redis."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ampd.config import Graph, Worker
from ampd.errors import ConfigError
from ampd.launch.models import resolve_model
from ampd.launch.preflight import check_cores, free_ports
from ampd.profiler import guard
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
    """Start the first prefill and the first decode worker of a graph. They end with the block, or with this process, however that
    ends. Raises ConfigError or SetupError.
    """
    from ampd.workers.engines.vllm import VllmEngine

    check_cores(graph)
    groups = first_worker(graph, "prefill"), first_worker(graph, "decode")
    model = await asyncio.to_thread(resolve_model, graph)
    graph = _as_measured(graph, model)
    ports = free_ports(graph.transport.host, 2)
    with _guarded() as mark:
        prefill, decode = (VllmEngine(graph, _marked(group, mark), 0, port) for group, port in zip(groups, ports, strict=True))
        try:
            await prefill.start()
            await decode.start()
            yield EnginePair(prefill, decode, graph, model)
        finally:
            await asyncio.gather(prefill.stop(), decode.stop())


@contextmanager
def _guarded() -> Iterator[str]:
    """Have a process watch over this one; gives the mark by which it knows the engines."""
    mark = uuid.uuid4().hex
    command = [sys.executable, "-I", "-S", guard.__file__, mark]
    # A session of its own: a terminal's Ctrl-C does not reach it.
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield mark


def _marked(worker: Worker, mark: str) -> Worker:
    """With the guard's mark, and quiet unless the graph says otherwise: logs would tear the progress bar."""
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "NIXL_LOG_LEVEL": "WARN"}
    return worker.model_copy(update={"env": {**quiet, **worker.env, guard.MARK: mark}})


def first_worker(graph: Graph, role: str) -> Worker:
    """The group whose engine is measured. Raises ConfigError when there is none, or it is simulated."""
    for index, worker in enumerate(graph.workers):
        if worker.role == role:
            if worker.engine != "vllm":
                raise ConfigError(f"workers.{index}.engine = {worker.engine!r}: only engine: vllm can be measured")
            return worker
    raise ConfigError(f"workers: profiling measures KV reads both ways, so the graph needs a worker with role: {role}")


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
