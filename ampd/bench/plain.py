"""A plain vLLM server, no connector and no Dynamo: the reference whose answers are taken as right."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from ampd.bench.client import Client
from ampd.config import Graph, Worker
from ampd.errors import SetupError

_READY_S = 300.0
_STOP_S = 15.0


@asynccontextmanager
async def plain_server(graph: Graph, model: Path) -> AsyncIterator[str]:
    """Serve the graph's model with vLLM's own OpenAI server, as its first decode worker would; yields the URL.

    Raises SetupError with the last lines of the server's log when it does not come up.
    """
    worker = next(w for w in graph.workers if w.role == "decode")
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory(prefix="ampd-plain-") as folder:
        log = Path(folder) / "plain.log"
        with log.open("wb") as out:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "vllm.entrypoints.openai.api_server", *_arguments(graph, worker, model, port),
                stdout=out, stderr=out, stdin=asyncio.subprocess.DEVNULL, env=_environment(worker), start_new_session=True,
            )  # fmt: skip
        try:
            await _ready(process, url, graph.model.served_name, log)
            yield url
        finally:
            await _stop(process)


def _arguments(graph: Graph, worker: Worker, model: Path, port: int) -> list[str]:
    flags = {
        "--model": model,
        "--served-model-name": graph.model.served_name,
        "--dtype": graph.model.dtype,
        "--block-size": graph.model.block_size,
        "--max-model-len": graph.model.max_model_len,
        "--max-num-batched-tokens": worker.prefill_chunk,
        "--tensor-parallel-size": worker.tensor_parallel,
        "--host": "127.0.0.1",
        "--port": port,
    }
    return [str(part) for flag in flags.items() for part in flag] + ["--enforce-eager", "--disable-uvicorn-access-log"]


def _environment(worker: Worker) -> dict[str, str]:
    env = {**os.environ, **worker.env, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if worker.cores or worker.kv_cache_gib is not None:
        env["TORCHDYNAMO_DISABLE"] = "1"  # a CPU machine need not have a compiler
    if worker.cores:
        env["VLLM_CPU_OMP_THREADS_BIND"] = worker.cores[0]
    if worker.kv_cache_gib is not None:
        env["VLLM_CPU_KVCACHE_SPACE"] = str(worker.kv_cache_gib)
    return env


async def _ready(process: asyncio.subprocess.Process, url: str, name: str, log: Path) -> None:
    import aiohttp

    loop = asyncio.get_running_loop()
    deadline = loop.time() + _READY_S
    async with Client(url, name) as client:
        while loop.time() < deadline:
            if process.returncode is not None:
                raise SetupError(f"the plain vLLM server ended with code {process.returncode}:\n{_tail(log)}")
            try:
                if name in await client.models():
                    return
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(0.3)
    raise SetupError(f"the plain vLLM server was not ready within {_READY_S:g} s:\n{_tail(log)}")


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End the server and its engine processes, which share its process group."""
    if process.returncode is None:
        process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), _STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, 9)
    await process.wait()


def _tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
