"""The command `ampd profile check`: measure a few points again on live engines."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click
from rich.console import Console

from ampd.bench.cli import plain_errors, write_json
from ampd.bench.terminal import make_console
from ampd.config import load_graph
from ampd.cost_model import Profile, load_profile
from ampd.errors import ProfileError
from ampd.profiler.curves import curves
from ampd.profiler.drift import Drift, Expected, drifts, pick
from ampd.profiler.grid import choose_spots
from ampd.profiler.measure import measure_points
from ampd.profiler.noise import Watch
from ampd.profiler.pair import engine_pair
from ampd.profiler.report import make_fits_table
from ampd.profiler.run import Task, make_task
from ampd.profiler.sampling import Progress
from ampd.profiler.show import FILE, JSON
from ampd.profiler.spots import Spot
from ampd.profiler.terminal import points_progress


def expect(profile: Profile, task: Task, count: int) -> list[Expected]:
    """The points to take again. Raises ProfileError when the profile is of other engines, or has none that these can do."""
    thetas = {"prefill": task.prefill.tensor_parallel, "decode": task.decode.tensor_parallel}
    for theta in dict.fromkeys(thetas.values()):
        profile.check(model=task.graph.model.served_name, theta=theta, block_size=task.graph.model.block_size)
    candidates = [*choose_spots(task.limits, True), *choose_spots(task.limits, False)]
    picked = pick(curves(profile), candidates, thetas, count, profile.meta.transport)
    if not picked:
        raise ProfileError("the graph's engines are too small for any point in the profile's measured range; profile them")
    return picked


async def measure(task: Task, spots: Sequence[Spot], progress: Progress) -> tuple[Mapping[Spot, Sequence[float]], list[str]]:
    """Samples by point, and the signs of a noisy machine. Raises ConfigError and SetupError when the engines do not start."""
    progress(0, len(spots), "starting engines")
    async with engine_pair(task.graph) as pair:
        watch = Watch()
        watch.begin()
        return await measure_points(pair, spots, watch=watch, progress=progress), watch.report()


def differing(profile: Profile, task: Task) -> list[str]:
    """What else is not as it was when the profile was made: it may explain a drift."""
    meta, identity = profile.meta, task.identity
    lines = []
    if meta.source != "measured":
        lines.append(f"the profile is {meta.source}: what differs is its error, not a drift")
    if meta.weights is not None and meta.weights != identity.weights:
        lines.append(f"weights: the profile is of {meta.weights}, the graph's are {identity.weights}")
    if meta.config_id is not None and meta.config_id != identity.fingerprint:
        lines.append("machine or settings: not those that were profiled")
    return lines


@click.command()
@click.argument("profile_file", metavar="PROFILE", type=FILE)
@click.option("--graph", "graph_file", type=FILE, default="configs/local-cpu.yaml", show_default=True,
              help="Its first prefill and decode worker are measured.")  # fmt: skip
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key of the graph; repeatable.")
@click.option("--bound", type=click.FloatRange(min=0, min_open=True), default=0.25, show_default=True,
              help="Drift is a function slower or faster by more: 0.25 is a factor of 1.25 either way.")  # fmt: skip
@click.option("--points", type=click.IntRange(min=1), default=3, show_default=True, help="Points of each function.")
@JSON
def check(profile_file: Path, graph_file: Path, sets: tuple[str, ...], bound: float, points: int, json_file: str | None) -> None:
    """Measure a few points of PROFILE again on a graph's engines and report how far they have drifted.

    Exits with 1 when a function has drifted beyond the bound, with 2 when it could not be checked.
    """
    console = make_console(stderr=json_file == "-")
    with plain_errors():
        profile = load_profile(profile_file)
        task = make_task(load_graph(graph_file, sets), quick=True)
        picked = expect(profile, task, points)
        notes = differing(profile, task)
        measured, noise = _run(task, [e.spot for e in picked])
        found, missing = drifts(picked, measured, bound)
        if not found:
            raise ProfileError("no point could be measured: every sample was spoilt; is something else using the machine?")
    notes += [f"noisy machine: {line}" for line in noise]
    if missing:
        notes.append(f"not measured, as every sample was spoilt: {', '.join(missing)}")
    _print(console, found, notes, bound)
    write_json({"rows": [d.as_json() for d in found], "notes": notes, "missing": missing}, json_file)
    sys.exit(1 if any(drift.drifted for drift in found) else 0)


def _run(task: Task, spots: Sequence[Spot]) -> tuple[Mapping[Spot, Sequence[float]], list[str]]:
    async def run() -> tuple[Mapping[Spot, Sequence[float]], list[str]]:
        running = asyncio.current_task()
        if running is not None:  # so that the engines are stopped
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        with points_progress(make_console(stderr=True)) as progress:
            return await measure(task, spots, progress)

    try:
        return asyncio.run(run())
    except (KeyboardInterrupt, asyncio.CancelledError) as e:
        raise SystemExit(130 if isinstance(e, KeyboardInterrupt) else 143) from None


def _print(console: Console, found: Sequence[Drift], notes: Sequence[str], bound: float) -> None:
    table = make_fits_table("Seconds now / seconds of the profile", ("function", "theta", "points", "median", "range", "verdict"))
    for drift in found:
        spread = f"{min(drift.ratios):.2f}..{max(drift.ratios):.2f}"
        verdict = f"drifted beyond {bound:g}" if drift.drifted else f"within {bound:g}"
        table.add_row(drift.curve.title, drift.curve.theta, str(len(drift.ratios)), f"{drift.ratio:.2f}", spread, verdict)
    console.print(table)
    for line in notes:
        console.print(line, highlight=False, soft_wrap=True)
