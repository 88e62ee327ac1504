"""`python -m ampd.workers --config GRAPH --namespace NS --component GROUP [--index I [--count N]] [--role ROLE]`."""

from __future__ import annotations

import logging
import os
import sys

import click
import uvloop

from ampd.config import Graph, Worker, load_graph
from ampd.errors import AmpdError, ConfigError


def find_group(graph: Graph, component: str | None, role: str | None, index: int, count: int = 1) -> Worker:
    """The worker group to run replicas `index` to `index + count - 1` of. Raises ConfigError."""
    groups = [w for w in graph.workers if (component in (None, w.name)) and (role in (None, w.role))]
    if not groups:
        known = ", ".join(f"{w.name} ({w.role})" for w in graph.workers)
        raise ConfigError(f"no worker group with component {component!r} and role {role!r}; the graph has {known}")
    group = groups[0]
    if index >= group.replicas:
        raise ConfigError(f"--index {index}: group {group.name} has replicas {group.replicas}, counted from 0")
    if index + count > group.replicas:
        raise ConfigError(f"--count {count}: group {group.name} has {group.replicas - index} replicas from --index {index} on")
    if count > 1 and group.engine != "sim":
        raise ConfigError(f"--count {count}: group {group.name} has engine {group.engine}, of which a process runs one")
    return group


@click.command()
@click.option("--config", required=True, help="graph file")
@click.option("--namespace", required=True, help="Dynamo namespace of the workers")
@click.option("--component", help="name of the worker group in the graph")
@click.option("--role", type=click.Choice(["prefill", "decode"]), help="instead of, or to check, the component's role")
@click.option("--index", type=click.IntRange(min=0), default=0, help="which replica of the group this is")
@click.option("--count", type=click.IntRange(min=1), default=1, help="replicas from --index on in this process (engine: sim)")
@click.option("--side-channel-port", type=click.IntRange(1, 65535), default=5600, help="handshake port, unique on a host")
@click.option("--ready-file", help="created once the worker serves")
def main(
    config: str,
    namespace: str,
    component: str | None,
    role: str | None,
    index: int,
    count: int,
    side_channel_port: int,
    ready_file: str | None,
) -> None:
    """Run one worker, or several simulated ones, until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    try:
        graph = load_graph(config)
        group = find_group(graph, component, role, index, count)
        from ampd.workers import service

        uvloop.run(
            service.run(
                graph, group, range(index, index + count), namespace, side_channel_port, lambda: service.mark_ready(ready_file)
            ),
        )
    except* AmpdError as errors:
        for error in errors.exceptions:
            click.echo(f"ampd worker: {error}", err=True)
        sys.exit(2 if errors.subgroup(ConfigError) else 1)
    # Everything is closed. Python's own teardown of the engine's libraries takes seconds, which a stop does not have.
    logging.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main()
