"""A Coordinator that does not route: no state, no session, no ledger, no policy. What the hop through Python costs by itself.

It registers the same model card, takes the same arguments as `python -m ampd.coordinator`, and sends every request to the decode
workers in turn.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any

import click
import uvloop
from dynamo.common.utils.token_ids import token_ids_to_list
from dynamo.runtime import Client, Context

from ampd.config import Graph, load_graph
from ampd.coordinator import service
from ampd.messages import DecodeChunk, DecodeRequest, decode, encode


class Handler:
    """The endpoint that the frontend calls."""

    def __init__(self, workers: Client, graph: Graph) -> None:
        self._workers, self._targets = workers, graph.targets
        self._turn = itertools.count()

    async def generate(self, raw: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        """Preprocessed request -> engine outputs."""
        ids = self._workers.instance_ids()
        worker = ids[next(self._turn) % len(ids)]
        id = uuid.uuid4().hex
        request = DecodeRequest(
            id=id,
            session=f"single-{id}",
            round=1,
            path="local",
            token_ids=token_ids_to_list(raw.pop("token_ids")),
            l_hist=0,
            request=raw,
            prefill=None,
            history=None,
            keep=False,
            prefill_worker=worker,
            estimate_s=0.0,
            elapsed_s=0.0,
            ttft_target_s=self._targets.ttft_s,
        )
        async for chunk in await self._workers.direct(encode(request), worker, annotated=False, context=context.detached(id)):
            yield decode(DecodeChunk, chunk).output


async def serve(graph: Graph, namespace: str, ready_file: str | None) -> None:
    """Serve until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    runtime = service.open_runtime()
    workers = await runtime.endpoint(f"{namespace}.decode.generate").client()
    endpoint = runtime.endpoint(f"{namespace}-api.coordinator.generate")
    await service.register(graph, endpoint)
    serving = asyncio.ensure_future(endpoint.serve_endpoint(Handler(workers, graph).generate))
    service.mark_ready(ready_file)
    await stop.wait()
    serving.cancel()
    runtime.shutdown()


@click.command()
@click.option("--config", required=True)
@click.option("--namespace", required=True)
@click.option("--ready-file")
def main(config: str, namespace: str, ready_file: str | None) -> None:
    """Run one."""
    uvloop.run(serve(load_graph(config), namespace, ready_file))


if __name__ == "__main__":
    sys.exit(main())
