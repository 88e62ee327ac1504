"""The command `ampd profile`."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from ampd.bench.terminal import make_console
from ampd.config import Graph, load_graph
from ampd.cost_model import Profile, save_profile
from ampd.profiler.report import fits_table
from ampd.profiler.run import profile_graph


@click.command()
@click.option("--graph", "graph_file", type=click.Path(dir_okay=False, path_type=Path), default="configs/local-cpu.yaml",
              show_default=True, help="Its first prefill and decode worker are measured.")  # fmt: skip
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The profile.json to write.")
@click.option("--quick", is_flag=True, help="Fewer points and repeats: about two minutes on a small CPU machine.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key of the graph; repeatable.")
def profile(graph_file: Path, out: Path, quick: bool, sets: tuple[str, ...]) -> None:
    """Measure T_pre, T_dec and T_kv of a graph's engines and write profile.json.

    The machine should have nothing else to do meanwhile.
    """
    console = make_console(stderr=True)
    graph = load_graph(graph_file, sets)
    started = time.monotonic()
    measured = asyncio.run(_measure(console, graph, quick))
    save_profile(measured, out)
    console.print(fits_table(measured))
    console.print(f"{out}: written after {time.monotonic() - started:.0f} s", highlight=False)


async def _measure(console: Console, graph: Graph, quick: bool) -> Profile:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        tasks: dict[str, TaskID] = {}

        def progress(what: str, total: int | None) -> None:
            if total is not None:
                tasks[what] = bar.add_task(what, total=total)
            else:
                bar.advance(tasks[what])

        return await profile_graph(graph, quick=quick, progress=progress)
