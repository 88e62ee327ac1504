"""A prefill and a decode engine in this process, and the rounds that tests play through them."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from job_outputs import Outputs

from ampd.config import Graph, build_graph
from ampd.workers.engines.base import EngineJob, EngineOutput
from ampd.workers.engines.vllm import VllmEngine

BLOCK = 32
_ids = itertools.count()


def graph(folder: Path, **sections: Any) -> Graph:
    """A prefill worker on core 0 and a decode worker on core 1, float32, KV over tcp, which is asynchronous."""
    data: dict[str, Any] = {
        "model": {"path": str(folder), "served_name": "tiny", "dtype": "float32", "block_size": BLOCK, "max_model_len": 8192},
        "sessions": {"idle_ttl_s": 120},
        "transport": {"ucx_tls": "tcp"},
        "workers": [
            {"name": "prefill", "role": "prefill", "cores": ["0"], "kv_cache_gib": 1, "prefill_chunk": 256},
            {"name": "decode", "role": "decode", "cores": ["1"], "kv_cache_gib": 1, "prefill_chunk": 512},
        ],
    }
    for name, values in sections.items():
        data[name] = {**data.get(name, {}), **values} if isinstance(values, dict) else values
    return build_graph(data)


def engine(graph: Graph, role: str, port: int) -> VllmEngine:
    worker = next(w for w in graph.workers if w.role == role)
    return VllmEngine(graph, worker, 0, port)


def prompt(length: int, seed: int) -> list[int]:
    """Token ids that no other seed shares a block with."""
    rng = random.Random(seed)
    return [rng.randrange(3, 2000) for _ in range(length)]


def request(tokens: int, **more: Any) -> dict[str, Any]:
    """Dynamo's preprocessed request for greedy tokens."""
    return {
        "sampling_options": {"temperature": 0.0, **more.pop("sampling_options", {})},
        "stop_conditions": {"max_tokens": tokens, "ignore_eos": True, **more.pop("stop_conditions", {})},
        "output_options": more.pop("output_options", {}),
        **more,
    }


@dataclass
class Result(Outputs):
    """All outputs of one job, and when it ended."""

    ended_at: float = 0.0


async def run(engine: VllmEngine, finish_after: int | None = None, **job: Any) -> Result:
    """Run a job to its end. With `finish_after`, it is told to finish once it has that many tokens."""
    result = Result()
    job.setdefault("id", f"job-{next(_ids)}")
    async for output in engine.generate(EngineJob(**job)):
        result.outputs.append(output)
        if finish_after is not None and len(result.tokens) >= finish_after:
            finish_after = None
            await engine.finish(job["id"])
    result.ended_at = time.time()
    assert result.last.finished
    assert not any(output.finished for output in result.outputs[:-1])
    return result


async def until(condition: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    """Wait for something that has to come."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(0.02)


@dataclass
class Pair:
    """The engines, and one session's rounds on them."""

    prefill: VllmEngine
    decode: VllmEngine

    async def idle(self) -> None:
        """Both engines hold no KV."""
        await until(
            lambda: self.prefill.load().kv_used == 0 and self.decode.load().kv_used == 0, "KV use returns to its base, zero"
        )


@dataclass
class Session:
    """A conversation: what a Coordinator and the two workers' services would keep of it."""

    pair: Pair
    tokens: list[int] = field(default_factory=list)
    handle: EngineOutput | None = None
    salt: str = field(default_factory=lambda: f"session-{next(_ids)}")  # its own part of the prefix caches

    async def round(
        self, path: str, increment: list[int], n: int = 8, finish_after: int | None = None, **more: Any
    ) -> tuple[list[int], Result, Result | None]:
        """Play one round; returns its tokens, D's result and P's, if any. The older pin ends with the round."""
        self.tokens += increment
        before, self.handle = self.handle, None
        first: Result | None = None
        source: dict[str, Any] | None = None
        if path == "remote":
            first = await self.prefill(before)
            source = first.last.params
        release = [before.ref] if before is not None and before.ref is not None else []
        result = await run(
            self.pair.decode,
            finish_after,
            kind="decode",
            token_ids=list(self.tokens),
            request=request(n, **more),
            source=source,
            source_tokens=len(self.tokens) if source else 0,
            release=release,
            cache_salt=self.salt,
        )
        self.handle = result.last
        self.tokens += result.tokens
        return result.tokens, result, first

    async def prefill(self, before: EngineOutput | None, **more: Any) -> Result:
        """The remote prefill of the tokens so far, reading whole blocks of the older pin."""
        held = before.pinned_tokens // BLOCK * BLOCK if before is not None else 0
        return await run(
            self.pair.prefill,
            kind="prefill",
            token_ids=list(self.tokens),
            source=before.params if before is not None else None,
            source_tokens=held,
            cache_salt=self.salt,
            **more,
        )

    async def close(self) -> None:
        """Release what the session still holds."""
        if self.handle is not None and self.handle.ref is not None:
            await self.pair.decode.release([self.handle.ref])
        self.handle = None


@asynccontextmanager
async def started(*engines: VllmEngine) -> AsyncIterator[None]:
    """Engines that are stopped however the block ends."""
    try:
        for engine in engines:
            await engine.start()
        yield
    finally:
        for engine in engines:
            await engine.stop()


@contextmanager
def frozen(engine: VllmEngine) -> Iterator[None]:
    """Stop the engine's worker processes: over tcp a read from them makes no progress meanwhile."""
    cores = {p.pid for p in engine._llm.engine_core.resources.engine_manager.processes}
    workers = [process for process in engine._processes if process.pid not in cores]
    for process in workers:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in workers:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


def free_ports(count: int) -> list[int]:
    """Port numbers of the loopback that are free now."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
