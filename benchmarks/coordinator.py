"""Rounds a second and added latency of Coordinators: `python -m benchmarks.coordinator`.

One-token rounds of multi-round sessions through Dynamo's own frontend, a real Redis, and simulated decode workers whose engine
takes next to no time, so that what is measured is the control plane. There are no prefill workers and prefills are not deflected:
a round is one call to its decode worker, with a Coordinator that routes as with the no-op.

Each number of Coordinators is measured beside a no-op: the same graph with one that does not route
(`benchmarks/noop_coordinator.py`), the row of 0 Coordinators. Both graphs are up and get short loads in turn, `--repeats` times, so
that a noisy minute hits both. `p50_ms` is the median round over one connection, `added_p50_ms` the median of its differences to
the no-op's of the same turn. Rounds a second are those of `--connections` connections that each send the next round when the last
is answered. `cpu_ms` is what each kind of process spends on a round, the client here included: on a machine of few cores their sum
is the limit. `no_op_rounds_per_s` is what the no-op reached in the same turns.

Where one Coordinator and its load fill all cores, a second one cannot do more. `--share` gives every Coordinator, the no-op too,
that share of a core only, so that the Coordinator is the limit and not the machine: then the rates tell what another one adds.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
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
from benchmarks.throttle import throttled
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
async def serving(graph: Graph, noop: bool, share: float) -> AsyncIterator[tuple[str, Mapping[str, int]]]:
    """Start the graph, whose Coordinators get a share of a core each; yields its URL and its processes' ids by name."""
    graph = await asyncio.to_thread(prepare, graph, Quiet())
    run_dir = make_run_dir()
    layout = make_layout(graph, run_dir)
    write_run_dir(graph, layout)
    supervisor = Supervisor(run_dir, child_environment(), Quiet())
    try:
        await supervisor.start([_quiet(_noop(spec) if noop else spec) for spec in plan(graph, layout)], _START_S)
        url = base_url(graph.frontend.host, graph.frontend.port)
        await wait_graph(url, graph.model.served_name, _START_S)
        pids = supervisor.pids
        async with throttled([pid for name, pid in pids.items() if name.startswith("coordinator")], share):
            yield url, pids
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


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one graph: its median round over one connection, then many connections' rounds a second and CPU ms a round."""

    p50_ms: float
    rounds_per_s: float
    cpu_ms: dict[str, float]


class Graphs:
    """Loads graphs that are up, by turns."""

    def __init__(self, seconds: float, connections: int, rng: random.Random) -> None:
        self._seconds, self._connections, self._rng = seconds, connections, rng

    async def load(self, url: str, model: str, per_second: int, connections: int) -> tuple[list[float], float]:
        """New sessions, at most so many a second."""
        sessions = render_sessions(Shape(), model, max(connections, int(self._seconds * per_second)), self._rng)
        return await run_load(url, sessions, connections, self._seconds)

    async def turn(self, url: str, model: str, pids: Mapping[str, int]) -> Turn:
        """Measure one graph once."""
        single, _ = await self.load(url, model, 80, 1)
        sessions = render_sessions(Shape(), model, int(self._seconds * 250), self._rng)
        before, mine = _cpu_seconds(pids), time.process_time()
        rounds, took = await run_load(url, sessions, self._connections, self._seconds)
        spent = {kind: seconds - before[kind] for kind, seconds in _cpu_seconds(pids).items()}
        spent["client"] = time.process_time() - mine
        return Turn(1e3 * median(single), len(rounds) / took, {kind: 1e3 * s / len(rounds) for kind, s in spent.items()})


async def measure(coordinators: int, policy: str, repeats: int, share: float, graphs: Graphs) -> tuple[list[Turn], list[Turn]]:
    """Turns of the no-op and of so many Coordinators, side by side."""
    turns: tuple[list[Turn], list[Turn]] = ([], [])
    async with AsyncExitStack() as stack:
        up = []
        for graph, noop in ((make_graph(1, policy), True), (make_graph(coordinators, policy), False)):
            url, pids = await stack.enter_async_context(serving(graph, noop, share))
            await graphs.load(url, graph.model.served_name, 20, 8)  # warm
            up.append((url, graph.model.served_name, pids))
        for _ in range(repeats):
            for results, served in zip(turns, up, strict=True):
                results.append(await graphs.turn(*served))
    return turns


def summarise(coordinators: int, turns: Sequence[Turn], noop: Sequence[Turn]) -> dict[str, Any]:
    """The medians of one configuration; `noop` has the no-op's turns beside `turns`."""
    return {
        "coordinators": coordinators,
        "rounds_per_s": round(median(turn.rounds_per_s for turn in turns), 1),
        "no_op_rounds_per_s": round(median(turn.rounds_per_s for turn in noop), 1),
        "p50_ms": round(median(turn.p50_ms for turn in turns), 3),
        "added_p50_ms": round(median(turn.p50_ms - beside.p50_ms for turn, beside in zip(turns, noop, strict=True)), 3),
        "cpu_ms": {kind: round(median(turn.cpu_ms[kind] for turn in turns), 3) for kind in turns[0].cpu_ms},
    }


@click.command()
@click.option("--coordinators", type=click.IntRange(1, 8), default=3, show_default=True, help="Most Coordinators.")
@click.option("--policy", default="predictive", show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0.5), default=2.0, show_default=True, help="Of each load.")
@click.option("--connections", type=click.IntRange(min=1), default=160, show_default=True)
@click.option("--repeats", type=click.IntRange(min=1), default=5, show_default=True)
@click.option(
    "--share", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True, help="Of a core, for each Coordinator."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "json_file", metavar="FILE", help="Write the rows as JSON; '-' is standard output.")
def main(
    coordinators: int, policy: str, seconds: float, connections: int, repeats: int, share: float, seed: int, json_file: str | None
) -> None:
    """Measure the no-op and 1 to N Coordinators. Exits with 2 when a graph cannot start or a round fails."""
    console = make_console(stderr=json_file == "-")
    graphs = Graphs(seconds, connections, random.Random(seed))

    async def run() -> list[dict[str, Any]]:
        rows, noops = [], []
        for n in range(1, coordinators + 1):
            noop, turns = await measure(n, policy, repeats, share, graphs)
            noops += noop
            rows.append(summarise(n, turns, noop))
        return [summarise(0, noops, noops), *rows]

    with plain_errors():
        rows = uvloop.run(run())
    table = make_table(f"one-token rounds by number of Coordinators ({policy}); 0 does not route")
    columns = ("coordinators", "rounds/s", "no-op rounds/s", "p50 ms", "added p50 ms")
    for name in (*columns, *(f"CPU ms: {kind}" for kind in rows[0]["cpu_ms"])):
        table.add_column(name, justify="right")
    for row in rows:
        rates = (f"{row['rounds_per_s']:.0f}", f"{row['no_op_rounds_per_s']:.0f}")
        figures = (*rates, f"{row['p50_ms']:.2f}", f"{row['added_p50_ms']:.2f}")
        table.add_row(str(row["coordinators"]), *figures, *(f"{ms:.2f}" for ms in row["cpu_ms"].values()))
    console.print(table)
    console.print(machine())
    write_json({"rows": rows}, json_file)


if __name__ == "__main__":
    sys.exit(main())
