"""`python -m ampd.coordinator --config GRAPH --namespace NS [--ready-file PATH]`."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Coroutine
from typing import Any

import click
import uvloop

from ampd.config import load_graph
from ampd.coordinator import logs
from ampd.errors import AmpdError, ConfigError


@click.command()
@click.option("--config", required=True, help="graph file")
@click.option("--namespace", required=True, help="Dynamo namespace of the workers; the model is registered in NAMESPACE-api")
@click.option("--ready-file", help="created once the Coordinator serves")
def main(config: str, namespace: str, ready_file: str | None) -> None:
    """Run one Coordinator until SIGTERM. Exit codes: 0 stopped, 1 failed, 2 bad configuration."""
    handler = logs.set_up()
    try:
        graph = load_graph(config)
        from ampd.coordinator import service

        uvloop.run(_with_log(service.run(graph, namespace, lambda: service.mark_ready(ready_file)), handler))
    except AmpdError as error:
        click.echo(f"ampd coordinator: {error}", err=True)
        sys.exit(2 if isinstance(error, ConfigError) else 1)


async def _with_log(work: Coroutine[Any, Any, None], handler: logging.Handler) -> None:
    flushing = asyncio.create_task(logs.flushing(handler))
    try:
        await work
    finally:
        flushing.cancel()
        handler.flush()


if __name__ == "__main__":
    main()
