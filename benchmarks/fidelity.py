"""Whether the simulator says what real engines do: `python -m benchmarks.fidelity --profile FILE`.

Generated sessions are played through a live graph at several rates, open-loop, and every round is recorded. Then the simulator
serves the same sessions, arriving as they did, with the measured profile, and both are compared round by round.

A shared machine is not as fast all day as when it was profiled. The workers' own calibration says by how much it differed in each
run; its factors, averaged over the run, multiply the profile's functions (`--plain` leaves them out).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import msgspec

from ampd.bench.cli import plain_errors, write_json
from ampd.bench.client import Client
from ampd.bench.terminal import make_console, make_table
from ampd.config import Graph, load_graph
from ampd.launch import RunningGraph, running_graph
from ampd.launch.progress import for_console
from ampd.policy.types import WorkerView
from ampd.state.redis_store import RedisStore
from ampd.state.settings import StoreSettings
from benchmarks.fidelity_compare import FUNCTIONS, Recording, compare, plot, replay
from benchmarks.fidelity_load import draw_sessions, play
from benchmarks.timing import machine

_LOOK_EVERY_S = 1.0
_PATIENCE_S = 5.0  # nothing waits for these looks
_WARM_SESSIONS = 6
_LIMITS = {"mean": 0.10, "p50": 0.10, "p95": 0.20}


async def record(running: RunningGraph, rate: float, sessions: int, seed: int) -> Recording:
    """Play sessions at a rate. Raises WorkerError when a round fails."""
    name = running.graph.model.served_name
    drawn = draw_sessions(sessions, rate, seed)
    async with Client(running.url, name) as client:
        await play(client, draw_sessions(_WARM_SESSIONS, 2.0, seed + 1))
        looking = asyncio.create_task(_factors(running))
        rounds = await play(client, drawn)
        looking.cancel()
        (seen,) = await asyncio.gather(looking, return_exceptions=True)
    if isinstance(seen, BaseException):
        raise seen
    return Recording(rate, drawn, rounds, seen)


async def _factors(running: RunningGraph) -> dict[str, dict[str, float]]:
    """Until cancelled: the workers' calibration by role and function, on average."""
    settings = replace(StoreSettings.of(running.graph), deadline_s=_PATIENCE_S)
    store = RedisStore(running.state_url, None, running.graph.name, settings)
    await store.connect()
    seen: dict[str, list[WorkerView]] = {"prefill": [], "decode": []}
    try:
        while True:
            view = await store.view()
            for worker in (*view.prefill, *view.decode):
                seen[worker.role].append(worker)
            await asyncio.sleep(_LOOK_EVERY_S)
    except asyncio.CancelledError:
        return {
            role: {fn: fmean(getattr(worker, f"{fn}_factor") for worker in workers) for fn in FUNCTIONS}
            for role, workers in seen.items()
            if workers
        }
    finally:
        await store.close()


async def record_all(graph: Graph, rates: Sequence[float], sessions: int, seed: int, progress: Any) -> list[Recording]:
    """One recording for each rate, on one running graph."""
    async with running_graph(graph, progress=progress) as running:
        return [await record(running, rate, sessions, seed + 10 * i) for i, rate in enumerate(rates)]


@click.command()
@click.option("--graph", "graph_file", type=click.Path(dir_okay=False, path_type=Path), default=Path("configs/small-cpu.yaml"))
@click.option("--profile", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Of the graph's engines.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key of the graph; repeatable.")
@click.option("--rates", default="0.4,0.8,1.2", show_default=True, help="Sessions a second.")
@click.option("--sessions", type=click.IntRange(min=1), default=50, show_default=True, help="At each rate; 4.5 rounds each.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--recorded", type=click.Path(dir_okay=False, path_type=Path), help="Recordings: read if there, else written.")
@click.option("--plain", is_flag=True, help="The profile as it is, without the workers' calibration.")
@click.option("--plots", type=click.Path(file_okay=False, path_type=Path), help="Write plots to this folder.")
@click.option("--json", "json_file", metavar="FILE", help="Write the rows as JSON; '-' is standard output.")
def main(
    graph_file: Path, profile: Path, sets: tuple[str, ...], rates: str, sessions: int, seed: int, recorded: Path | None,
    plain: bool, plots: Path | None, json_file: str | None,
) -> None:  # fmt: skip
    """Record, replay and compare. Exits with 1 when a figure is further off than docs/fidelity.md allows."""
    console = make_console(stderr=json_file == "-")
    with plain_errors():
        graph = load_graph(graph_file, [f"profile={profile}", *sets])
        if recorded is not None and recorded.exists():
            recordings = msgspec.json.decode(recorded.read_bytes(), type=list[Recording])
        else:
            wanted = [float(rate) for rate in rates.split(",")]
            recordings = asyncio.run(record_all(graph, wanted, sessions, seed, for_console(console)))
            if recorded is not None:
                recorded.write_bytes(msgspec.json.encode(recordings))
        outcomes = [replay(graph, profile, recording, plain) for recording in recordings]
        rows = [compare(graph, recording, outcome) for recording, outcome in zip(recordings, outcomes, strict=True)]
    table = make_table("simulated against measured")
    for name in ("sessions/s", "rounds", "figure", "measured", "simulated", "off by"):
        table.add_column(name, justify="right")
    for row in rows:
        for figure, (real, simulated) in row["figures"].items():
            table.add_row(
                str(row["rate"]), str(row["rounds"]), figure, f"{real:.4f}", f"{simulated:.4f}", f"{simulated / real - 1:+.1%}"
            )
        shares = (
            ("paths agree", row["path_agreement"]),
            ("attained", row["attained"][0]),
            ("attained, simulated", row["attained"][1]),
        )
        for name, share in shares:
            table.add_row(str(row["rate"]), "", name, f"{share:.1%}", "", "")
    console.print(table)
    console.print(machine())
    if plots is not None:
        plot(graph, recordings, outcomes, plots)
    write_json({"rows": rows, "factors": [r.factors for r in recordings]}, json_file)
    sys.exit(0 if all(_within(row) for row in rows) else 1)


def _within(row: dict[str, Any]) -> bool:
    figures = all(abs(simulated / real - 1) <= _LIMITS[name.split()[1]] for name, (real, simulated) in row["figures"].items())
    return figures and row["path_agreement"] >= 0.9 and abs(row["attained"][0] - row["attained"][1]) <= 0.05


if __name__ == "__main__":
    main()
