"""`ampd config`: look at a graph file without running it. Neither vLLM, NIXL nor Dynamo is needed."""

from __future__ import annotations

import click

from ampd.cli.options import graph_argument, set_option
from ampd.config import load_graph, load_sources, show_graph
from ampd.launch.preflight import check_graph


@click.group()
def config() -> None:
    """Check a graph file, or show what it means."""


@config.command()
@graph_argument
@set_option
def check(graph_file: str, sets: tuple[str, ...]) -> None:
    """Check a graph for this machine as `ampd serve` does before it starts anything.

    Keys, types, values, cores, the state's URL, the profile and the model folder. One line and exit code 2 when the configuration
    is wrong in itself, 1 when this machine lacks what it names.
    """
    graph = load_graph(graph_file, sets)
    check_graph(graph)
    workers = ", ".join(f"{group.replicas} {group.role} ({group.name})" for group in graph.workers)
    click.echo(f"{graph_file}: ok: graph {graph.name}, model {graph.model.served_name}, {workers}")


@config.command()
@graph_argument
@set_option
def show(graph_file: str, sets: tuple[str, ...]) -> None:
    """Print the graph with every value that is in force, and where each comes from: --set, AMPD_* variable, file or default."""
    click.echo(show_graph(*load_sources(graph_file, sets)), nl=False)
