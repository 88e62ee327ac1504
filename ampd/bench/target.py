"""Where a bench sends its rounds: a graph it starts itself, or one that already runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from rich.console import Console

from ampd.bench.client import Client
from ampd.config import Graph, load_graph
from ampd.errors import SetupError
from ampd.launch.models import resolve_model
from ampd.launch.progress import for_console
from ampd.launch.running import running_graph

DEFAULT_GRAPH = Path("configs/local-cpu.yaml")


@dataclass(frozen=True, slots=True)
class Target:
    """A reachable server and the graph it runs. `model` is the folder with the served model's tokenizer."""

    url: str
    graph: Graph
    model: Path


@asynccontextmanager
async def open_target(graph_file: Path, url: str | None, sets: Sequence[str], console: Console) -> AsyncIterator[Target]:
    """Start the graph of `graph_file`, showing it on `console`, or, with a URL, check that the server there serves its model.

    Raises ConfigError for a bad graph, SetupError when nothing answers or another model is served.
    """
    graph = load_graph(graph_file, sets)
    if url is None:
        progress = for_console(console)
        async with running_graph(graph, progress=progress) as running:
            progress.close()
            yield Target(running.url, running.graph, Path(running.graph.model.path))
    else:
        await _check_served(url, graph.model.served_name, graph_file)
        yield Target(url, graph, await asyncio.to_thread(resolve_model, graph))


async def _check_served(url: str, name: str, graph_file: Path) -> None:
    async with Client(url, name) as client:
        try:
            served = await client.models()
        except (aiohttp.ClientError, TimeoutError) as e:
            raise SetupError(
                f"--url {url}: no answer ({e or type(e).__name__}); is the graph running? start one with make serve"
            ) from None
    if name not in served:
        raise SetupError(f"--url {url} serves {served}, not {name!r} of {graph_file}; name its graph with --graph")
