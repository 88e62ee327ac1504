"""The worker process on Dynamo: endpoints, heartbeat, drain, for one worker or several. Alone imports Dynamo in this package.

Each worker has a Dynamo runtime of its own, so that each has its own instance id, also where several share a process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamo.runtime import DistributedRuntime, Endpoint

from ampd.config import Graph
from ampd.config import Worker as WorkerGroup
from ampd.cost_model.calibration import Calibration
from ampd.errors import ConfigError, EngineDead, StateError
from ampd.policy.reordering import Reordering, reorder
from ampd.policy.types import PrefillTask
from ampd.state.base import StateStore
from ampd.state.factory import open_store
from ampd.workers.costs import peer_theta, profiled_cost
from ampd.workers.endpoints import Departures, Endpoints, KvPeers
from ampd.workers.engines import make_engines
from ampd.workers.engines.base import Engine
from ampd.workers.judge import Judge, Predictor
from ampd.workers.metrics import WorkerMetrics
from ampd.workers.reporter import MIN_INTERVAL_S, Reporter
from ampd.workers.worker import Worker, WorkerIdentity

log = logging.getLogger(__name__)

# Reports of one process, at most: many workers in one must not take a core for them.
_REPORTS_PER_S = 200


@dataclass(slots=True)
class _Process:
    """What the workers of a process share. `ready` is called once all of them serve; `alive` counts those whose engine lives."""

    graph: Graph
    group: WorkerGroup
    namespace: str
    store: StateStore
    stop: asyncio.Event
    ready: Callable[[], None]
    metrics: WorkerMetrics
    predictor: Predictor | None
    departures: Departures
    starting: int
    alive: int

    def serving(self) -> None:
        """One more worker serves."""
        self.starting -= 1
        if not self.starting:
            self.ready()

    def lost(self, error: EngineDead) -> None:
        """One worker's engine has died. Raises it again when no worker is left."""
        self.alive -= 1
        if not self.alive:
            raise error
        log.error("a worker is lost, %d of this process are left: %s", self.alive, error)


async def run(
    graph: Graph, group: WorkerGroup, replicas: Sequence[int], namespace: str, side_channel_port: int, ready: Callable[[], None]
) -> None:
    """Serve until SIGTERM or SIGINT. Raises SetupError or ConfigError at start, EngineDead when the last engine has died."""
    stop = asyncio.Event()
    for sig in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sig, stop.set)
    async with AsyncExitStack() as stack:
        store = open_store(graph)
        await store.connect()
        stack.push_async_callback(store.close)
        engines = make_engines(graph, group, replicas, side_channel_port)
        for engine in engines:
            stack.push_async_callback(engine.stop)
            if not await _unless(stop, engine.start()):
                return
            if engine.info.block_size != graph.model.block_size:
                raise ConfigError(f"model.block_size is {graph.model.block_size} but the engine uses {engine.info.block_size}")
        cost = profiled_cost(graph, group)
        predictor = None if cost is None else Predictor(cost, group.tensor_parallel, peer_theta(graph, group))
        process = _Process(
            graph, group, namespace, store, stop, ready, WorkerMetrics(), predictor, Departures(), len(engines), len(engines)
        )
        shared, runtimes = _runtimes(len(engines))
        for runtime in {shared, *runtimes}:
            stack.callback(runtime.shutdown)
        shown: Endpoint = shared.endpoint(f"{namespace}.{group.role}.generate")
        shown.metrics.register_prometheus_expfmt_callback(process.metrics.text)
        # Claims of histories: by prefill workers, and by decode workers that prefill for others.
        client = await shared.endpoint(f"{namespace}.decode.kv").client()
        peers = KvPeers(client, graph.transport.claim_timeout_s)
        async with asyncio.TaskGroup() as workers:
            for index, engine, runtime in zip(replicas, engines, runtimes, strict=True):
                workers.create_task(_host(process, index, runtime, engine, peers))


def _runtimes(count: int) -> tuple[DistributedRuntime, list[DistributedRuntime]]:
    """The process's own runtime, which opens the one system port there is, and one for each worker. A lone worker has it all."""
    backend, plane = os.environ.get("DYN_DISCOVERY_BACKEND", "file"), os.environ.get("DYN_REQUEST_PLANE", "tcp")
    loop = asyncio.get_running_loop()
    shared = DistributedRuntime(loop, backend, plane)
    if count == 1:
        return shared, [shared]
    os.environ.pop("DYN_SYSTEM_PORT", None)
    return shared, [DistributedRuntime(loop, backend, plane) for _ in range(count)]


async def _host(process: _Process, index: int, runtime: DistributedRuntime, engine: Engine, peers: KvPeers) -> None:
    """One worker, until it is told to stop or its engine dies; the others of the process go on."""
    dead: EngineDead | None = None
    try:
        await _serve(process, index, runtime, engine, peers)
    except* EngineDead as group:
        dead = EngineDead(str(group.exceptions[0]))
    if dead is not None:
        runtime.shutdown()
        process.lost(dead)


async def _serve(process: _Process, index: int, runtime: DistributedRuntime, engine: Engine, peers: KvPeers) -> None:
    graph, group = process.graph, process.group
    endpoint: dict[str, Endpoint] = {
        name: runtime.endpoint(f"{process.namespace}.{group.role}.{name}") for name in ("generate", "kv", "prefill")
    }
    identity = WorkerIdentity(endpoint["generate"].connection_id(), group.role, uuid.uuid4().hex, group.tensor_parallel)
    worker, reporter = _worker(process, identity, engine)
    process.metrics.watch(f"{group.name}-{index}", worker, reporter)
    handlers = Endpoints(worker, peers, process.departures)
    serves = {"kv": handlers.kv, "generate": handlers.prefill if group.role == "prefill" else handlers.decode}
    if group.role == "decode":
        serves["prefill"] = handlers.prefill  # of other decode workers' sessions, when this one has slack

    async with asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(reporter.run()), tasks.create_task(worker.maintain())]
        serving = [tasks.create_task(_serve_endpoint(endpoint[name], handler)) for name, handler in serves.items()]
        background.append(tasks.create_task(_watch_engine(engine)))
        process.serving()
        log.info("serving: worker %d, role %s, epoch %s", identity.id, group.role, identity.epoch)
        await process.stop.wait()
        await _leave(worker, process.store, [endpoint[name] for name in serves if name != "kv"], graph.drain_s)
        for task in background:
            task.cancel()
        runtime.shutdown()
        for task in serving:
            task.cancel()


def _worker(process: _Process, identity: WorkerIdentity, engine: Engine) -> tuple[Worker, Reporter]:
    graph, metrics = process.graph, process.metrics
    settings = graph.policy.reorder

    def order(tasks: Sequence[PrefillTask], now: float) -> Reordering:
        began = time.perf_counter()
        chosen = reorder(tasks, now, settings.window, settings.name)
        metrics.reordered(
            chosen, max(task.postponed + (task.id in chosen.postponed) for task in tasks), time.perf_counter() - began
        )
        return chosen

    worker: Worker
    interval_s = max(MIN_INTERVAL_S, process.alive / _REPORTS_PER_S)
    reporter = Reporter(process.store, lambda: worker.row(), lambda: worker.waiting(), graph.state.heartbeat_s, interval_s)
    packs = identity.role == "decode" and graph.policy.local_prefill != "exclusive"
    judge = Judge(process.predictor, engine.load, Calibration() if graph.policy.calibrate else None, metrics.judged, packs=packs)
    chunk = process.group.prefill_chunk if packs else 0
    worker = Worker(
        identity, engine, reporter, order, graph.transport.read_grace_s, graph.sessions.idle_ttl_s, metrics, judge, chunk
    )
    return worker, reporter


async def _serve_endpoint(endpoint: Endpoint, handler: Callable[..., AsyncIterator[Any]]) -> None:
    # Dynamo hands out a future, which a task group does not take.
    await endpoint.serve_endpoint(handler)


async def _leave(worker: Worker, store: StateStore, endpoints: Sequence[Endpoint], drain_s: float) -> None:
    """Out of routing first, then let the running rounds end, then out of the state."""
    for endpoint in endpoints:
        await endpoint.unregister_endpoint_instance()
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
