"""`ampd serve`."""

from __future__ import annotations

import click

from ampd.cli.options import graph_argument, set_option
from ampd.config import load_graph


@click.command()
@graph_argument
@set_option
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the frontend; 0 = a free one. Same as --set frontend.port=N.")
@click.option("--component", "only", multiple=True, metavar="NAME", help="Start just this component; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Print the processes that would be started, and stop.")
@click.option("--keep-going", is_flag=True, help="Keep the rest of the graph running when a process dies.")
@click.option(
    "--start-timeout", type=click.FloatRange(1), default=600.0, show_default=True, help="Seconds to wait until it serves."
)
def serve(
    graph_file: str,
    sets: tuple[str, ...],
    port: int | None,
    only: tuple[str, ...],
    dry_run: bool,
    keep_going: bool,
    start_timeout: float,
) -> None:
    """Run a graph on this machine until Ctrl-C: Redis, Dynamo's frontend, Coordinators and workers."""
    if port is not None:
        sets += (f"frontend.port={port}",)
    graph = load_graph(graph_file, sets)

    from rich.console import Console

    from ampd.launch import serve as launcher

    if dry_run:
        launcher.dry_run(graph, only)
    else:
        launcher.serve(graph, only, start_timeout, keep_going, Console())
