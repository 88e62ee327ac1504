"""64 simulated workers under thousands of sessions: `python -m benchmarks.scale SESSIONS.jsonl`.

Everything but the engines is real: Dynamo's frontend, the Coordinators, the worker processes, Redis. Recorded sessions are replayed
with their lengths and gaps, scaled as the options say. In the middle of the run Redis may be killed and come back empty, and a
Coordinator may be killed. The table says whether every round was answered, whether each session stayed on one decode worker, how
evenly the prefill workers were used, and whether the queues in Redis are those of the workers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil
import uvloop

from ampd.bench.cli import plain_errors, write_json
from ampd.bench.client import Client
from ampd.bench.lengths import LengthSession, load_sessions
from ampd.bench.lengths_replay import Crowd, Pace, Played, replay
from ampd.bench.rounds import RoundResult
from ampd.bench.terminal import make_console, make_table, rounds_progress
from ampd.config import Graph, Targets, load_graph
from ampd.launch import RunningGraph, running_graph
from benchmarks.queues import QueueWatch

_RESTART_S = 30.0


@dataclass(frozen=True, slots=True)
class Mishaps:
    """What happens when half of the rounds have been answered."""

    redis_outage_s: float = 0.0
    kill_coordinator: bool = False

    async def happen(self, running: RunningGraph) -> None:
        """Kill what is to be killed, and bring Redis back."""
        if self.kill_coordinator:
            os.kill(running.pids["coordinator-0"], signal.SIGKILL)
        if self.redis_outage_s:
            os.kill(running.pids["redis"], signal.SIGKILL)
            await asyncio.sleep(self.redis_outage_s)
            await running.supervisor.restart("redis", _RESTART_S)


async def run(
    running: RunningGraph, sessions: Sequence[LengthSession], count: int, rounds: int, pace: Pace, mishaps: Mishaps, seed: int = 0,
    answered: Any = lambda: None,
) -> dict[str, Any]:  # fmt: skip
    """Replay, let the mishaps happen, and return the figures."""
    crowd, half, seen = Crowd(), asyncio.Event(), Counter[str]()
    expected = sum(len(sessions[i % len(sessions)].rounds[:rounds]) for i in range(count))

    def on_answer() -> None:
        seen["rounds"] += 1
        if seen["rounds"] * 2 >= expected:
            half.set()
        answered()

    async def mishap() -> None:
        await half.wait()
        await mishaps.happen(running)

    cpu = {name: _cpu_s(pid) for name, pid in running.pids.items()} | {"client": _cpu_s(os.getpid())}
    started = time.perf_counter()
    async with Client(running.url, running.graph.model.served_name) as client, QueueWatch(running) as queues:
        accident = asyncio.create_task(mishap())
        played = await replay(client, sessions, count, rounds, pace, seed, crowd, on_answer)
        seconds = time.perf_counter() - started
        half.set()
        await accident
        queues_empty = await queues.settle()
    return {
        **figures(played, expected, seconds, running.graph.targets),
        "sessions": count,
        "concurrent_sessions": crowd.most,
        "queue_samples": queues.samples,
        "queues_equal_share": queues.equal_share,
        "queue_differences": dict(queues.differences.most_common(5)),
        "queues_empty_at_end": queues_empty,
        "cpu_ms_a_round": {
            name: round(1e3 * (_cpu_s(pid) - cpu[name]) / max(1, seen["rounds"]), 2)
            for name, pid in (*running.pids.items(), ("client", os.getpid()))
            if _cpu_s(pid) >= cpu[name]
        },
    }


def _paced(graph: Graph, speed: float) -> list[str]:
    """Overrides that make a graph's simulated engines faster, and its targets stricter, by `speed`."""
    groups = [f"workers.{i}.sim.speed={group.sim.speed * speed}" for i, group in enumerate(graph.workers)]
    return [*groups, f"targets.ttft_s={graph.targets.ttft_s / speed}", f"targets.itl_s={graph.targets.itl_s / speed}"]


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process so far; 0 for one that has ended."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def figures(played: Sequence[Played], expected: int, seconds: float, targets: Targets) -> dict[str, Any]:
    """The figures of a replay; times in seconds. `attained` is the share of all rounds that met both targets."""
    results = [r for p in played for r in p.results]
    good = [r for r in results if r.error is None and r.facts is not None]
    prefill = Counter(r.facts.prefill_worker for r in good if r.facts is not None and r.facts.path == "remote")
    remote = sum(prefill.values())
    return {
        "rounds": expected,
        "answered": len(good),
        "failed": expected - len(good),
        "sent_again": sum(len(p.errors) for p in played),
        "errors": dict(
            Counter(e[:100] for p in played for e in [*p.errors, *(r.error for r in p.results if r.error)]).most_common(5)
        ),
        "rounds_per_s": len(good) / seconds,
        "sessions_that_moved": sum(len(p.decode_workers) > 1 for p in played),
        "rebound": dict(Counter(r.facts.rebound for r in good if r.facts is not None and r.facts.rebound)),
        "degraded": sum(bool(r.facts and r.facts.degraded) for r in good),
        "remote_share": remote / len(good) if good else 0.0,
        "busiest_prefill_share": max(prefill.values(), default=0) / remote if remote else 0.0,
        "prefill_workers_used": len(prefill),
        "attained": sum(_attained(r, targets) for r in good) / expected,
        **_times(good),
    }


def _attained(result: RoundResult, targets: Targets) -> bool:
    facts = result.facts
    return facts is not None and (facts.ttft_s or 0.0) <= targets.ttft_s and (facts.itl_s or 0.0) <= targets.itl_s


def _times(good: Sequence[RoundResult]) -> dict[str, float]:
    ttft = [r.facts.ttft_s for r in good if r.facts is not None and r.facts.ttft_s is not None]
    itl = [r.facts.itl_s for r in good if r.facts is not None and r.facts.itl_s]
    return {
        f"{name}_p{q}_s": float(np.quantile(values, q / 100)) if values else 0.0
        for name, values in (("ttft", ttft), ("itl", itl))
        for q in (50, 95, 99)
    }


@click.command()
@click.argument("sessions_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--graph", "graph_file", type=click.Path(dir_okay=False, path_type=Path), default=Path("configs/sim-64.yaml"), show_default=True
)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key of the graph; repeatable.")
@click.option(
    "--engine-speed",
    type=click.FloatRange(min=0, min_open=True),
    default=0.1,
    show_default=True,
    help="Engines run this much faster than their profile; targets change with them. Below 1, more sessions last at the same cost.",
)
@click.option("--sessions", "count", type=click.IntRange(min=1), default=2300, show_default=True, help="Sessions at once.")
@click.option("--rounds", type=click.IntRange(min=1), default=4, show_default=True, help="Rounds of each session, at most.")
@click.option(
    "--ramp-s", type=click.FloatRange(min=0), default=60.0, show_default=True, help="Sessions start within these seconds."
)
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    default=0.5,
    show_default=True,
    help="Recorded gaps are divided by this.",
)
@click.option("--longest-gap-s", type=click.FloatRange(min=0), default=30.0, show_default=True)
@click.option(
    "--length-divisor", type=click.FloatRange(min=1), default=32.0, show_default=True, help="Prompt lengths are divided by this."
)
@click.option(
    "--output-divisor", type=click.FloatRange(min=1), default=32.0, show_default=True, help="Answer lengths are divided by this."
)
@click.option(
    "--redis-outage-s", type=click.FloatRange(min=0), default=0.0, help="Kill Redis halfway; it is back, empty, after this."
)
@click.option("--kill-coordinator", is_flag=True, help="Kill one Coordinator halfway.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "json_file", metavar="FILE", help="Write the figures as JSON; '-' is standard output.")
def main(
    sessions_file: Path, graph_file: Path, sets: tuple[str, ...], engine_speed: float, count: int, rounds: int, ramp_s: float,
    speed: float, longest_gap_s: float, length_divisor: float, output_divisor: float, redis_outage_s: float,
    kill_coordinator: bool, seed: int, json_file: str | None,
) -> None:  # fmt: skip
    """Replay SESSIONS_FILE.

    Exits with 1 when a round fails (with --kill-coordinator: for good), a session moves, or a queue is not empty in the end; with 2
    when it cannot start.
    """
    console = make_console(stderr=json_file == "-")
    pace = Pace(ramp_s, speed, longest_gap_s, length_divisor, output_divisor)
    mishaps = Mishaps(redis_outage_s, kill_coordinator)

    async def go() -> dict[str, Any]:
        sessions = load_sessions(sessions_file)
        total = sum(len(sessions[i % len(sessions)].rounds[:rounds]) for i in range(count))
        async with running_graph(load_graph(graph_file, [*sets, *_paced(load_graph(graph_file, sets), engine_speed)])) as running:
            with rounds_progress(console) as bar:
                task = bar.add_task("rounds", total=total)
                return await run(running, sessions, count, rounds, pace, mishaps, seed, lambda: bar.advance(task))

    with plain_errors():
        row = uvloop.run(go())
    table = make_table("many sessions on simulated workers")
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in row.items():
        table.add_row(name, f"{value:.4g}" if isinstance(value, float) else str(value))
    console.print(table)
    write_json({"rows": [row]}, json_file)
    needless = row["sent_again"] and not kill_coordinator
    sys.exit(1 if row["failed"] or row["sessions_that_moved"] or needless or not row["queues_empty_at_end"] else 0)


if __name__ == "__main__":
    main()
