"""`ampd config`: look at a graph file without running it."""

from __future__ import annotations

import click

from ampd.cli.options import graph_argument, set_option
from ampd.config import dump_graph, load_graph


@click.group()
def config() -> None:
    """Check a graph file, or show what it means."""


@config.command()
@graph_argument
@set_option
def check(graph_file: str, sets: tuple[str, ...]) -> None:
    """Check keys, types and values; exit with 2 and one line when something is wrong."""
    graph = load_graph(graph_file, sets)
    workers = ", ".join(f"{group.replicas} {group.role} ({group.name})" for group in graph.workers)
    click.echo(f"{graph_file}: ok: graph {graph.name}, model {graph.model.served_name}, {workers}")


@config.command()
@graph_argument
@set_option
def show(graph_file: str, sets: tuple[str, ...]) -> None:
    """Print the graph with every value that is in force: defaults, file, AMPD_* variables, --set."""
    click.echo(dump_graph(load_graph(graph_file, sets)), nl=False)
