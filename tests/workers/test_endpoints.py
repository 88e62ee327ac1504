"""The endpoints' handlers: a caller that goes away ends its round, in whatever phase; a refusal travels as a message."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sim_engines import BLOCK, engines, graph, prompt, right
from sim_workers import Cluster, decode_request, prefill_request, upkeep

from ampd.errors import RoundCancelled
from ampd.messages import DecodeChunk, KvReply, KvRequest, PrefillResult, decode, encode
from ampd.workers.endpoints import Departures, Endpoints, KvPeers
from ampd.workers.worker import Worker


class Context:
    """A caller's request, as Dynamo shows it."""

    def __init__(self) -> None:
        self.stopped = self.killed = False

    def is_stopped(self) -> bool:
        return self.stopped

    def is_killed(self) -> bool:
        return self.killed


class Plane:
    """Dynamo's request plane between workers of this process."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def direct(self, request: Any, instance_id: int, annotated: bool | None = True) -> AsyncIterator[Any]:
        if instance_id >= len(self._cluster.workers):
            raise Exception(f"Unavailable: instance_id={instance_id} not found")
        worker = self._cluster.workers[instance_id]

        async def answers() -> AsyncIterator[Any]:
            yield encode(await worker.kv(decode(KvRequest, request)))

        return answers()


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[tuple[Cluster, list[Endpoints], Departures]]:
    async with engines(graph(folder), ("p", 0), ("d", 0), ("d", 1)) as found, upkeep(found, folder) as cluster:
        departures, peers = Departures(), KvPeers(Plane(cluster), 1.0)
        yield cluster, [Endpoints(worker, peers, departures) for worker in cluster.workers], departures
        await asyncio.sleep(0.05)
        assert departures._timer is None, "nothing is looked at once nobody is served"


async def until_running(worker: Worker) -> None:
    while not worker.engine.load().running:
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_a_prefill_ends_when_its_caller_goes(tmp_path: Path, how: str) -> None:
    async with serving(tmp_path) as (cluster, [on_p, *_], _):
        context = Context()
        call = asyncio.ensure_future(anext(on_p.prefill(encode(prefill_request("gone", prompt(8000))), context)))
        await until_running(cluster.p)
        setattr(context, how, True)
        with pytest.raises(RoundCancelled):
            await asyncio.wait_for(call, 1)  # the prefill alone takes 1.6 s
        await cluster.idle()


async def test_only_the_round_whose_caller_goes_ends(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cluster, [_, on_d, _], _):
        contexts = [Context(), Context()]

        async def chunks(i: int) -> list[DecodeChunk]:
            raw = encode(decode_request(f"r{i}", prompt(64, i)))
            return [decode(DecodeChunk, chunk) async for chunk in on_d.decode(raw, contexts[i])]

        leaving, staying = asyncio.create_task(chunks(0)), asyncio.create_task(chunks(1))
        await until_running(cluster.d)
        contexts[0].killed = True
        assert all(chunk.handle is None for chunk in await leaving)
        stayed = await staying
        assert [t for chunk in stayed for t in chunk.output["token_ids"]] == right(prompt(64, 1), 6)
        await cluster.d.release(stayed[-1].handle)
        await cluster.idle()


async def test_a_refusal_is_a_message(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, [_, on_d, _], _):
        raw = encode(decode_request("long", prompt(8192)))
        [chunk] = [decode(DecodeChunk, chunk) async for chunk in on_d.decode(raw, Context())]
        assert chunk.refused is not None
        assert "8192 tokens" in chunk.refused
        assert chunk.output["finish_reason"] == f"error: {chunk.refused}"


async def test_a_deflected_prefill_claims_its_history_from_the_bound_worker(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cluster, [_, on_d, on_other], _):
        first = prompt(300)
        chunks = [decode(DecodeChunk, chunk) async for chunk in on_d.decode(encode(decode_request("one", first)), Context())]
        history = chunks[-1].handle
        second = [*first, *right(first, 6), *prompt(50, 1)]
        raw = encode(prefill_request("two", second, history))
        [result] = [decode(PrefillResult, raw) async for raw in on_other.prefill(raw, Context())]
        assert (result.read_tokens, result.handle.worker) == (304 // BLOCK * BLOCK, 2)
        again = encode(prefill_request("again", second, history))
        [late] = [decode(PrefillResult, raw) async for raw in on_other.prefill(again, Context())]
        assert late.recompute == "claimed"
        assert await cluster.kv(KvRequest(op="release", handle=result.handle)) == KvReply(ok=True)
        await cluster.other.release(late.handle)
        await cluster.idle()
