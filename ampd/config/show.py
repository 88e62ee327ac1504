"""The effective values of a graph, each with where it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import yaml

from ampd.config.explain import Location
from ampd.config.load import dump_graph
from ampd.config.schema import Graph


def show_graph(graph: Graph, sources: Mapping[Location, str]) -> str:
    """The graph as YAML; the comment behind a value names its source: a flag, a variable, the file, or the default.

    `sources` says what `load_sources` found, in the order in which it was laid over each other.
    """
    text = dump_graph(graph)
    lines = text.splitlines()
    document = yaml.compose(text)
    for place, line in _values(document, ()) if document is not None else ():
        lines[line] += f"  # {_source(place, sources)}"
    return "\n".join(lines) + "\n"


def _values(node: yaml.Node, place: Location) -> Iterator[tuple[Location, int]]:
    """The place of every value and the line it ends on."""
    if isinstance(node, yaml.MappingNode) and node.value:
        for key, value in node.value:
            yield from _values(value, (*place, key.value))
    elif isinstance(node, yaml.SequenceNode) and node.value:
        for index, value in enumerate(node.value):
            yield from _values(value, (*place, index))
    else:
        yield place, node.start_mark.line


def _source(place: Location, sources: Mapping[Location, str]) -> str:
    found = "default"
    for assigned, source in sources.items():
        # A setting of a whole section holds for all below it; one of a key in it comes later.
        if place[: len(assigned)] == assigned:
            found = source
    return found
