"""A worker process whose engine says the prompt again: `python echo_worker.py ROLE NAMESPACE REDIS_URL GRAPH RECORD`.

Real Dynamo endpoints, real heartbeats; RECORD gets one JSON line for each thing heard. What a round's session id starts with tells
the engine to misbehave: `break` ends the process after a token, `slow` sends a token every 50 ms, `refuse` refuses.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from dynamo.runtime import Context, DistributedRuntime

from ampd.ledger import build, chain_at
from ampd.messages import (
    DecodeChunk,
    DecodeRequest,
    Handle,
    KvReply,
    KvRequest,
    PrefillRequest,
    PrefillResult,
    RoundStats,
    decode,
    encode,
    pack_params,
)
from ampd.state.base import WorkerRow
from ampd.state.redis_store import RedisStore
from ampd.state.settings import StoreSettings

BLOCK = 16


class Echo:
    def __init__(self, id: int, store: RedisStore, record: Path) -> None:
        self.id, self.epoch, self._store, self._record, self._refs = id, uuid.uuid4().hex, store, record, 0
        self._finishing: set[str] = set()

    def note(self, what: str, **fields: Any) -> None:
        with self._record.open("a") as file:
            file.write(json.dumps({"what": what, "worker": self.id, **fields}) + "\n")

    def handle(self, session: str, tokens: list[int]) -> Handle:
        self._refs += 1
        chain = chain_at(build(tokens, BLOCK), len(tokens), BLOCK)
        self.note("issue", ref=self._refs)
        return Handle(self.id, self.epoch, session, str(self._refs), len(tokens), chain, time.time() + 300, pack_params({}))

    async def prefill(self, raw: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        request = decode(PrefillRequest, raw)
        await self._store.dequeue(self.id, request.id)
        self.note("prefill", l_hist=request.l_hist, cache_salt=request.cache_salt)
        handle = self.handle(request.session, request.token_ids)
        yield encode(
            PrefillResult(handle=handle, queue_s=0, read_s=0, prefill_s=0.001, read_tokens=request.l_hist, cached_tokens=0)
        )

    async def decode(self, raw: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        request = decode(DecodeRequest, raw)
        await self._store.dequeue(self.id, request.id)
        self.note("decode", request=request.request, path=request.path, l_hist=request.l_hist)
        mood = (request.request.get("agent_context") or {}).get("session_id", "")
        if mood.startswith("refuse"):
            yield encode(DecodeChunk(output={"token_ids": []}, refused="top_k must be smaller"))
            return
        said = request.token_ids[: request.request["stop_conditions"].get("max_tokens") or 4]
        for choice in range(request.request["sampling_options"].get("n") or 1):
            for i, token in enumerate(said):
                if context.is_stopped():
                    self.note("stopped", after=i)
                    return
                if request.id in self._finishing:
                    said = said[: i + 1]
                last = i == len(said) - 1
                output = {"token_ids": [token], "index": choice, **({"finish_reason": "length"} if last else {})}
                if last and choice + 1 == (request.request["sampling_options"].get("n") or 1):
                    yield encode(self._last_chunk(request, output, said))
                    return
                yield encode(DecodeChunk(output=output))
                if mood.startswith("break"):
                    await asyncio.sleep(0.1)
                    os._exit(9)
                if mood.startswith("slow"):
                    await asyncio.sleep(0.05)

    def _last_chunk(self, request: DecodeRequest, output: dict[str, Any], said: list[int]) -> DecodeChunk:
        stats = RoundStats(
            ttft_s=request.elapsed_s,
            itl_s=0.001,
            tokens_out=len(said),
            queue_s=0,
            read_s=0,
            read_tokens=len(request.token_ids) - request.l_hist if request.path == "remote" else 0,
            cached_tokens=request.l_hist,
        )
        handle = self.handle(request.session, [*request.token_ids, *said][:-1]) if request.keep else None
        return DecodeChunk(output=output, stats=stats, handle=handle)

    async def kv(self, raw: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        request = decode(KvRequest, raw)
        self.note(request.op, ref=request.handle and int(request.handle.ref), id=request.id)
        if request.op == "finish":
            self._finishing.add(request.id)
        yield encode(KvReply(ok=True))


async def main(role: str, namespace: str, url: str, graph: str, record: str) -> None:
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    generate, kv = (runtime.endpoint(f"{namespace}.{role}.{name}") for name in ("generate", "kv"))
    store = RedisStore(url, None, graph, StoreSettings())
    echo = Echo(generate.connection_id(), store, Path(record))
    await store.connect()

    async def report() -> None:
        row = WorkerRow(id=echo.id, role=role, epoch=echo.epoch, theta=1, kv_total=9_000, kv_free=9_000)  # type: ignore[arg-type]
        while True:
            await store.put_worker(row)
            await asyncio.sleep(0.3)

    handler = echo.prefill if role == "prefill" else echo.decode
    await asyncio.gather(report(), generate.serve_endpoint(handler), kv.serve_endpoint(echo.kv))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
