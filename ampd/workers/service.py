"""The worker process on Dynamo: endpoints `generate` and `kv`, heartbeat, drain. The only importer of Dynamo in this package."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from dynamo.runtime import Client, Context, DistributedRuntime, Endpoint

from ampd.config import Graph
from ampd.config import Worker as WorkerGroup
from ampd.errors import ConfigError, EngineDead, RequestError, StateError, WorkerError, WorkerGone
from ampd.messages import DecodeChunk, DecodeRequest, KvReply, KvRequest, PrefillRequest, decode, encode
from ampd.policy.reordering import Reordering, reorder
from ampd.policy.types import PrefillTask
from ampd.state.base import StateStore
from ampd.state.factory import open_store
from ampd.workers.decode import serve_decode
from ampd.workers.engines import make_engine
from ampd.workers.engines.base import Engine
from ampd.workers.prefill import serve_prefill
from ampd.workers.reporter import Reporter
from ampd.workers.worker import Worker, WorkerIdentity

log = logging.getLogger(__name__)


class KvPeers:
    """The `kv` endpoint of the decode workers, over Dynamo."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client, self._timeout_s = client, timeout_s

    async def kv(self, request: KvRequest) -> KvReply:
        """Raises WorkerError when the worker is gone or does not answer in time."""
        if request.handle is None:
            raise WorkerError("a kv request between workers needs a handle")
        holder = request.handle.worker
        try:
            async with asyncio.timeout(self._timeout_s):
                async for reply in await self._client.direct(encode(request), holder, annotated=False):
                    return decode(KvReply, reply)
        except TimeoutError:
            raise WorkerError(f"worker {holder} did not answer within {self._timeout_s} s") from None
        except Exception as e:  # Dynamo raises bare Exception for an instance that is gone
            raise WorkerGone(f"worker {holder}: {e}") from e
        raise WorkerError(f"worker {holder} gave no answer")


class Endpoints:
    """Handlers: one message in, messages out. Errors that the peer should tell apart travel as messages."""

    def __init__(self, worker: Worker, peers: KvPeers) -> None:
        self._worker, self._peers = worker, peers

    async def prefill(self, raw: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        """PrefillRequest -> PrefillResult."""
        request = decode(PrefillRequest, raw)
        async with _stop_with(context, self._worker, request.id):
            yield encode(await serve_prefill(self._worker, self._peers, request))

    async def decode(self, raw: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        """DecodeRequest -> DecodeChunk..."""
        request = decode(DecodeRequest, raw)
        async with _stop_with(context, self._worker, request.id):
            try:
                async for chunk in serve_decode(self._worker, request):
                    yield encode(chunk)
            except RequestError as e:
                output = {"token_ids": [], "finish_reason": f"error: {e}"}
                yield encode(DecodeChunk(output=output, refused=str(e)))

    async def kv(self, raw: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        """KvRequest -> KvReply."""
        yield encode(await self._worker.kv(decode(KvRequest, raw)))


@asynccontextmanager
async def _stop_with(context: Context, worker: Worker, id: str) -> AsyncIterator[None]:
    """Cancel the round when its client goes away. Cancelled rather than torn down, so that every phase ends in its own way."""

    async def watch() -> None:
        await context.async_killed_or_stopped()
        await worker.cancel(id)

    watcher = asyncio.create_task(watch(), name=f"watch-{id}")
    try:
        yield
    finally:
        watcher.cancel()


async def run(
    graph: Graph, group: WorkerGroup, index: int, namespace: str, side_channel_port: int, ready: Callable[[], None]
) -> None:
    """Serve until SIGTERM or SIGINT. Raises SetupError or ConfigError at start, EngineDead when the engine dies."""
    stop = asyncio.Event()
    for sig in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sig, stop.set)
    async with AsyncExitStack() as stack:
        store = open_store(graph)
        await store.connect()
        stack.push_async_callback(store.close)
        engine = make_engine(graph, group, index, side_channel_port)
        stack.push_async_callback(engine.stop)
        if not await _unless(stop, engine.start()):
            return
        if engine.info.block_size != graph.model.block_size:
            raise ConfigError(f"model.block_size is {graph.model.block_size} but the engine uses {engine.info.block_size}")
        runtime = DistributedRuntime(
            asyncio.get_running_loop(),
            os.environ.get("DYN_DISCOVERY_BACKEND", "file"),
            os.environ.get("DYN_REQUEST_PLANE", "tcp"),
        )
        stack.callback(runtime.shutdown)
        await _serve(graph, group, namespace, runtime, store, engine, stop, ready)


async def _serve(
    graph: Graph,
    group: WorkerGroup,
    namespace: str,
    runtime: DistributedRuntime,
    store: StateStore,
    engine: Engine,
    stop: asyncio.Event,
    ready: Callable[[], None],
) -> None:
    generate: Endpoint = runtime.endpoint(f"{namespace}.{group.role}.generate")
    kv: Endpoint = runtime.endpoint(f"{namespace}.{group.role}.kv")
    peers = KvPeers(await runtime.endpoint(f"{namespace}.decode.kv").client(), graph.transport.claim_timeout_s)
    identity = WorkerIdentity(generate.connection_id(), group.role, uuid.uuid4().hex, group.tensor_parallel)
    settings = graph.policy.reorder

    def order(tasks: Sequence[PrefillTask], now: float) -> Reordering:
        return reorder(tasks, now, settings.window, settings.name)

    worker: Worker
    reporter = Reporter(store, lambda: worker.row(), lambda: {t.id for t in worker.queue.waiting}, graph.state.heartbeat_s)
    worker = Worker(identity, engine, reporter, order, graph.transport.read_grace_s, graph.sessions.idle_ttl_s)
    handlers = Endpoints(worker, peers)
    handler = handlers.prefill if group.role == "prefill" else handlers.decode

    async with asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(reporter.run()), tasks.create_task(worker.maintain())]
        serving = [tasks.create_task(_serve_endpoint(endpoint, h)) for endpoint, h in ((generate, handler), (kv, handlers.kv))]
        background.append(tasks.create_task(_watch_engine(engine)))
        ready()
        log.info("serving", extra={"worker": identity.id, "role": group.role, "epoch": identity.epoch})
        await stop.wait()
        await _leave(worker, store, generate, graph.drain_s)
        for task in background:
            task.cancel()
        runtime.shutdown()
        for task in serving:
            task.cancel()


async def _serve_endpoint(endpoint: Endpoint, handler: Callable[..., AsyncIterator[Any]]) -> None:
    # Dynamo hands out a future, which a task group does not take.
    await endpoint.serve_endpoint(handler)


async def _leave(worker: Worker, store: StateStore, generate: Endpoint, drain_s: float) -> None:
    """Out of routing first, then let the running rounds end, then out of the state."""
    await generate.unregister_endpoint_instance()
    await worker.drain(drain_s)
    try:
        await store.remove_worker(worker.identity.id)
    except StateError as e:
        log.warning("row not removed, it goes stale by itself: %s", e)


async def _watch_engine(engine: Engine) -> None:
    await engine.wait_dead()
    raise EngineDead("the engine has died; see the log above for its own error")


async def _unless(stop: asyncio.Event, work: Any) -> bool:
    """Await `work` unless told to stop first; True when it is done."""
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        await task
        return True
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return False


def mark_ready(path: str | None) -> None:
    """Tell the launcher, which waits for the file, that this process serves."""
    if path:
        Path(path).touch()
