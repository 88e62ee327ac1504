"""Time of a routing decision, state read included, by number of workers: `python -m benchmarks.routing`.

A decision is `open_round` (one round trip to a real Redis, through the store that Coordinators use) and the policy's `route`. Half
of the workers prefill, half decode; another process reports for all of them, each once in `state.heartbeat_s`, as their own
processes would. Rounds are those of bound sessions that have a ledger and a handle, and are closed between two decisions, off the
clock. No worker has slack, the worst case of Algorithm 1: every candidate is looked at and estimated. The pure decision is `route`
alone.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import Any

import click
import numpy as np
import redis
import uvloop
from msgspec.structs import replace

from ampd.bench.cli import plain_errors, write_json
from ampd.bench.terminal import make_console, make_table
from ampd.config import Graph, build_graph
from ampd.cost_model.default import CoarseCostModel
from ampd.ledger import DIGEST_SIZE
from ampd.messages import Handle, pack_params
from ampd.policy.placing import Router
from ampd.policy.registry import make_policy
from ampd.policy.types import ClusterView
from ampd.policy.types import Round as Placement
from ampd.state.base import Held, Sample, WorkerRow
from ampd.state.factory import open_store
from ampd.state.resilient import ResilientStore
from benchmarks.redis_child import redis_child
from benchmarks.timing import machine

_POLICIES = ("paper", "predictive")
_SESSIONS = 200


@dataclass(frozen=True, slots=True)
class Load:
    """What is measured: decisions timed for each number of workers, on sessions of `tokens` tokens."""

    decisions: int
    tokens: int
    policy: str


def graph_of(url: str, policy: str, workers: int) -> Graph:
    """The configuration of a graph over that Redis."""
    groups = [{"name": role, "role": role, "engine": "sim", "replicas": workers // 2} for role in ("prefill", "decode")]
    return build_graph({"name": f"bench-{workers}", "policy": {"name": policy}, "state": {"url": url}, "workers": groups})


def row_of(worker: int, workers: int, beat: int) -> WorkerRow:
    """A busy worker's report: half of them prefill, the others decode. Its figures differ from beat to beat."""
    role, rng = "prefill" if worker < workers // 2 else "decode", random.Random(worker * 1_000_003 + beat)
    return WorkerRow(
        id=2**63 + worker,
        role="prefill" if role == "prefill" else "decode",
        epoch=f"epoch-{worker:028d}",
        theta=4,
        running=rng.randint(1, 64),
        running_s=rng.uniform(2.5, 4.0) if role == "prefill" else 0.0,
        kv_total=1_000_000,
        kv_free=rng.randint(100_000, 400_000),
        kv_pinned=rng.randint(0, 100_000),
        context=rng.randint(100_000, 500_000),
        link_s=rng.uniform(0.0, 0.1),
        kv_written=beat * 1000,
    )


def samples_of(worker: int, graph: Graph) -> list[Sample]:
    """Windows above every target."""
    both = (("ttft", 2 * graph.targets.ttft_s), ("itl", 2 * graph.targets.itl_s))
    return [Sample(2**63 + worker, "ttft" if kind == "ttft" else "itl", seconds, 1) for kind, seconds in both]


def feed(url: str, workers: int, ready: Event, stop: Event) -> None:
    """Report for all workers until told to stop: a process of its own, so that its work is not the decisions'."""
    graph = graph_of(url, "paper", workers)

    async def run() -> None:
        store, beat = open_store(graph), 0
        await store.connect()
        while not stop.is_set():
            started = time.monotonic()
            for worker in range(workers):
                await store.report(row_of(worker, workers, beat), (), samples_of(worker, graph))
                due = started + graph.state.heartbeat_s * (worker + 1) / workers
                if beat > 0 and (early := due - time.monotonic()) > 0.001:
                    await asyncio.sleep(early)
            if beat > 0:  # windows are kept of workers that are known
                ready.set()
            beat += 1
        await store.close()

    uvloop.run(run())


def handle_of(session: str, worker: int, tokens: int, block_size: int) -> Handle:
    """A handle with the transfer parameters of a session of so many tokens."""
    blocks = list(range(1000, 1000 + tokens // block_size))
    params = {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "01234567-89ab-cdef-0123-456789abcdef",
        "remote_request_id": f"chatcmpl-{session}",
        "remote_block_ids": [blocks],
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "remote_num_tokens": tokens,
        "tp_size": 4,
    }
    return Handle(2**63 + worker, f"epoch-{worker:028d}", session, f"pin-{session}", tokens, "ab" * 16, 2e9, pack_params(params))


async def bind(store: ResilientStore, session: str, worker: int, tokens: int, block_size: int) -> None:
    """A session after a round of `tokens` tokens."""
    epoch = f"epoch-{worker:028d}"
    await store.open_round(session)
    row = await store.bind(session, 2**63 + worker, epoch, 0)
    row = replace(
        row, round=1, tokens=tokens, handle=handle_of(session, worker, tokens, block_size), held=(Held(2**63, epoch, tokens, 1),)
    )
    await store.close_round(session, row, os.urandom(DIGEST_SIZE * (tokens // block_size)))


def placement(session: str, worker: int, tokens: int, graph: Graph, view: ClusterView) -> Placement:
    """The round that a policy places."""
    held = {view.prefill[0].id: tokens // 2} if view.prefill else {}
    return Placement(session, 2, worker, tokens, 500, graph.targets.ttft_s, graph.targets.itl_s, held)


def pure_us(policy: Router, graph: Graph, view: ClusterView, load: Load) -> float:
    """Median microseconds of `route` alone."""
    cost, rng, times = CoarseCostModel(), random.Random(1), []
    for i in range(load.decisions):
        round = placement(f"s{i}", view.decode[i % len(view.decode)].id, load.tokens, graph, view)
        started = time.perf_counter()
        policy.route(round, view, cost, rng)
        times.append(time.perf_counter() - started)
    return float(np.median(times)) * 1e6


async def decisions(store: ResilientStore, graph: Graph, load: Load) -> tuple[list[float], list[float]]:
    """Seconds of each decision, and of the state read in it."""
    policy, cost, rng = make_policy(graph.policy), CoarseCostModel(), random.Random(2)
    whole, reads = [], []
    for i in range(load.decisions):
        session = f"s{i % _SESSIONS}"
        started = time.perf_counter()
        opened = await store.open_round(session)
        read = time.perf_counter()
        row = opened.session
        assert row is not None
        policy.route(placement(session, row.worker, row.tokens, graph, opened.view), opened.view, cost, rng)
        ended = time.perf_counter()
        whole.append(ended - started)
        reads.append(read - started)
        await store.close_round(session, row, opened.ledger)
        await asyncio.sleep(0)  # a store that is away answers at once, and comes back only if others get their turn
    return whole, reads


async def measure(url: str, workers: int, load: Load) -> dict[str, Any]:
    """The row of one number of workers."""
    graph = graph_of(url, load.policy, workers)
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    feeder = context.Process(target=feed, args=(url, workers, ready, stop), daemon=True)
    feeder.start()
    store = open_store(graph)
    try:
        await asyncio.to_thread(ready.wait, 60)
        await store.connect()
        for i in range(_SESSIONS):
            await bind(store, f"s{i}", workers // 2 + i % (workers // 2), load.tokens, graph.model.block_size)
        await decisions(store, graph, Load(200, load.tokens, load.policy))
        gc.freeze()
        whole, reads = await decisions(store, graph, load)
        view = await store.view()
        pure = {name: pure_us(make_policy(graph_of(url, name, workers).policy), graph, view, load) for name in _POLICIES}
        return {
            "workers": workers,
            "p50_ms": round(1e3 * float(np.median(whole)), 4),
            "p99_ms": round(1e3 * float(np.quantile(whole, 0.99)), 4),
            "pure_p50_us": round(pure[load.policy], 1),
            "read_p50_ms": round(1e3 * float(np.median(reads)), 4),
            "read_share": round(sum(reads) / sum(whole), 3),
            "slow": store.slow,
            "degraded": store.degraded,
        } | {f"pure_{name}_p50_us": round(value, 1) for name, value in pure.items()}
    finally:
        stop.set()
        await asyncio.to_thread(feeder.join, 10)
        await store.close()


async def session_bytes(url: str, tokens: int) -> dict[str, Any]:
    """Bytes that Redis keeps for one session of so many tokens."""
    graph = graph_of(url, "paper", 2)
    store = open_store(graph)
    await store.connect()
    await bind(store, f"bytes-{tokens}", 0, tokens, graph.model.block_size)
    await store.close()
    with redis.Redis.from_url(url) as client:
        used = client.memory_usage(f"{{ampd:{graph.name}}}:session:bytes-{tokens}", samples=0)
    return {"tokens": tokens, "redis_bytes": used, "block_size": graph.model.block_size}


def show(rows: Sequence[dict[str, Any]], sessions: Sequence[dict[str, Any]], load: Load, transport: str, as_json: bool) -> None:
    """The tables."""
    console = make_console(stderr=as_json)
    table = make_table(f"decision with Redis ({transport}), policy {load.policy}, sessions of {load.tokens} tokens; medians")
    columns = {
        "workers": "workers", "p50 ms": "p50_ms", "p99 ms": "p99_ms", "state read p50 ms": "read_p50_ms", "its share": "read_share",
        "pure paper us": "pure_paper_p50_us", "pure predictive us": "pure_predictive_p50_us",
        "past deadline": "slow", "not answered": "degraded",
    }  # fmt: skip
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{row[key]:.0%}" if key == "read_share" else str(row[key]) for key in columns.values()))
    console.print(table)
    table = make_table("Redis bytes a session (ledger, handle, binding)")
    for name in ("tokens", "bytes", "bytes a token"):
        table.add_column(name, justify="right")
    for row in sessions:
        table.add_row(str(row["tokens"]), str(row["redis_bytes"]), f"{row['redis_bytes'] / row['tokens']:.2f}")
    console.print(table)
    console.print(machine())


@click.command()
@click.option("--workers", multiple=True, type=click.IntRange(min=2), default=(2, 8, 64, 256, 1024), show_default=True)
@click.option("--decisions", "count", type=click.IntRange(min=10), default=3000, show_default=True)
@click.option("--tokens", type=click.IntRange(min=32), default=8192, show_default=True, help="Tokens of a session's ledger.")
@click.option("--policy", type=click.Choice(_POLICIES), default="predictive", show_default=True)
@click.option("--transport", type=click.Choice(["unix", "tcp"]), default="unix", show_default=True)
@click.option("--json", "json_file", metavar="FILE", help="Write the rows as JSON; '-' is standard output.")
def main(workers: tuple[int, ...], count: int, tokens: int, policy: str, transport: str, json_file: str | None) -> None:
    """Measure decisions. Exits with 2 when Redis cannot be started."""
    load = Load(count, tokens, policy)
    with plain_errors(), redis_child() as server:
        url = server.unix if transport == "unix" else server.tcp
        rows = [uvloop.run(measure(url, number, load)) | {"transport": transport, "policy": policy} for number in workers]
        sessions = [uvloop.run(session_bytes(url, size)) for size in (8192, 131072)]
    show(rows, sessions, load, transport, json_file == "-")
    write_json({"rows": rows, "sessions": sessions}, json_file)


if __name__ == "__main__":
    main()
