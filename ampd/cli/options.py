"""Options and arguments that several commands share."""

from __future__ import annotations

import click

graph_argument = click.argument("graph_file", metavar="GRAPH.yaml")
set_option = click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Set a key of the graph, e.g. targets.ttft_s=1.5; may be repeated."
)
