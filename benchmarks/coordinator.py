"""Rounds a second and added latency of Coordinators: `python -m benchmarks.coordinator`.

One-token rounds of multi-round sessions through Dynamo's own frontend, a real Redis, and simulated decode workers whose engine
takes next to no time, so that what is measured is the control plane. There are no prefill workers and prefills are not deflected:
a round is one call to its decode worker, with a Coordinator that routes as with the no-op. 0 Coordinators is the same graph with
one that does not route (`benchmarks/noop_coordinator.py`), measured in the same run: `added_p50_ms` is the median round with one
connection, less that of the no-op. Rounds a second are those of many connections that each send the next round when the last is
answered. Each row is the median over `--repeats`, the configurations taken in turn, so that a noisy minute hits all of them.
`cpu_ms` is what each kind of process spends on a round: on a machine of few cores their sum is the limit.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import click
import psutil
import uvloop

from ampd.bench.cli import plain_errors, write_json
from ampd.bench.terminal import make_console, make_table
from ampd.config import Graph, build_graph
from ampd.launch.plan import ProcessSpec, base_url, plan
from ampd.launch.progress import Quiet
from ampd.launch.readiness import wait_graph
from ampd.launch.running import child_environment, make_layout, make_run_dir, prepare, remove_run_dir, write_run_dir
from ampd.launch.supervisor import Supervisor
from benchmarks.coordinator_load import Shape, render_sessions, run_load
from benchmarks.timing import machine

_NOOP = Path(__file__).with_name("noop_coordinator.py")
_KINDS = {"frontend": "frontend", "coordinator": "coordinator", "decode": "worker", "redis": "redis"}
_START_S = 60.0


def make_graph(coordinators: int, policy: str) -> Graph:
    """Simulated decode workers, whose engine is fast enough to be no part of it, in one process."""
    worker = {
        "name": "decode",
        "role": "decode",
        "engine": "sim",
        "replicas": 4,
        "tensor_parallel": 4,
        "sim": {"kv_tokens": 1_000_000, "speed": 1000.0},
    }
    return build_graph(
        {
            "name": "bench",
            "model": {"path": "tiny", "served_name": "llama-3.1-70b", "block_size": 64, "max_model_len": 4096},
            "policy": {"name": policy, "predictive": {"deflect": False}},
            "profile": "configs/profiles/llama-3.1-70b-h200-tp4.json",
            "state": {"deadline_ms": 100},
            "coordinator": {"replicas": max(1, coordinators)},
            "workers": [worker],
        }
    )


@asynccontextmanager
async def serving(graph: Graph, noop: bool) -> AsyncIterator[tuple[str, Mapping[str, int]]]:
    """Start the graph; yields its URL and its processes' ids by name."""
    graph = await asyncio.to_thread(prepare, graph, Quiet())
    run_dir = make_run_dir()
    layout = make_layout(graph, run_dir)
    write_run_dir(graph, layout)
    supervisor = Supervisor(run_dir, child_environment(), Quiet())
    try:
        await supervisor.start([_quiet(_noop(spec) if noop else spec) for spec in plan(graph, layout)], _START_S)
        url = base_url(graph.frontend.host, graph.frontend.port)
        await wait_graph(url, graph.model.served_name, _START_S)
        yield url, supervisor.pids
    finally:
        await supervisor.stop()
        remove_run_dir(run_dir, keep_logs=False)


def _noop(spec: ProcessSpec) -> ProcessSpec:
    if spec.kind != "coordinator":
        return spec
    at = spec.argv.index("ampd.coordinator")
    argv = (*spec.argv[: at - 1], str(_NOOP), *spec.argv[at + 1 :])
    return replace(spec, argv=argv, env={**spec.env, "PYTHONPATH": str(_NOOP.parents[1])})


def _quiet(spec: ProcessSpec) -> ProcessSpec:
    """Dynamo would write two lines of its own a request in each process."""
    return replace(spec, env={"DYN_LOG": "warn", **spec.env})


def _cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    spent = dict.fromkeys(_KINDS.values(), 0.0)
    for name, pid in pids.items():
        times = psutil.Process(pid).cpu_times()
        spent[_KINDS[name.partition("-")[0]]] += times.user + times.system
    return spent


async def measure(coordinators: int, policy: str, seconds: float, connections: int, rng: random.Random) -> dict[str, Any]:
    """One start of the graph: the latency of single rounds, then the throughput of many."""
    graph = make_graph(coordinators, policy)
    sessions = render_sessions(Shape(), graph.model.served_name, int(seconds * 250), rng)
    probes = render_sessions(Shape(), graph.model.served_name, int(seconds * 80), rng)
    async with serving(graph, noop=coordinators == 0) as (url, pids):
        await run_load(url, render_sessions(Shape(), graph.model.served_name, 40, rng), 8, seconds)  # warm
        single, _ = await run_load(url, probes, 1, seconds)
        before = _cpu_seconds(pids)
        rounds, took = await run_load(url, sessions, connections, seconds)
        spent = {kind: 1e3 * (s - before[kind]) / len(rounds) for kind, s in _cpu_seconds(pids).items()}
    return {"p50_ms": 1e3 * median(single), "rounds_per_s": len(rounds) / took, "cpu_ms": spent}


def summarise(coordinators: int, runs: Sequence[Mapping[str, Any]], noop_p50_ms: float) -> dict[str, Any]:
    """The medians of one configuration."""
    p50 = median(run["p50_ms"] for run in runs)
    return {
        "coordinators": coordinators,
        "rounds_per_s": round(median(run["rounds_per_s"] for run in runs), 1),
        "p50_ms": round(p50, 3),
        "added_p50_ms": round(p50 - noop_p50_ms, 3),
        "cpu_ms": {kind: round(median(run["cpu_ms"][kind] for run in runs), 3) for kind in runs[0]["cpu_ms"]},
    }


@click.command()
@click.option("--coordinators", type=click.IntRange(1, 8), default=3, show_default=True, help="Most Coordinators.")
@click.option("--policy", default="predictive", show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.5), default=3.0, show_default=True, help="Of each measurement.")
@click.option("--connections", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "json_file", metavar="FILE", help="Write the rows as JSON; '-' is standard output.")
def main(coordinators: int, policy: str, seconds: float, connections: int, repeats: int, seed: int, json_file: str | None) -> None:
    """Measure the no-op and 1 to N Coordinators. Exits with 2 when a graph cannot start or a round fails."""
    console = make_console(stderr=json_file == "-")
    rng = random.Random(seed)

    async def run() -> dict[int, list[dict[str, Any]]]:
        runs: dict[int, list[dict[str, Any]]] = {n: [] for n in range(coordinators + 1)}
        for _ in range(repeats):
            for n, results in runs.items():
                results.append(await measure(n, policy, seconds, connections, rng))
        return runs

    with plain_errors():
        runs = uvloop.run(run())
    noop_p50_ms = median(r["p50_ms"] for r in runs[0])
    rows = [summarise(n, results, noop_p50_ms) for n, results in runs.items()]
    table = make_table(f"one-token rounds by number of Coordinators ({policy}); 0 does not route")
    for name in ("coordinators", "rounds/s", "p50 ms", "added p50 ms", *(f"CPU ms: {kind}" for kind in rows[0]["cpu_ms"])):
        table.add_column(name, justify="right")
    for row in rows:
        figures = (f"{row['rounds_per_s']:.0f}", f"{row['p50_ms']:.2f}", f"{row['added_p50_ms']:.2f}")
        table.add_row(str(row["coordinators"]), *figures, *(f"{ms:.2f}" for ms in row["cpu_ms"].values()))
    console.print(table)
    console.print(machine())
    write_json({"rows": rows}, json_file)


if __name__ == "__main__":
    sys.exit(main())
