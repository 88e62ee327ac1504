"""The Coordinator on Dynamo: the graph's only model card, one endpoint, drain. The only importer of Dynamo in this package."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

from dynamo.common.utils.token_ids import token_ids_to_list
from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model
from dynamo.llm.exceptions import CannotConnect, ConnectionTimeout, InvalidArgument
from dynamo.runtime import Context, DistributedRuntime, Endpoint

from ampd import cost_model
from ampd.config import Graph
from ampd.coordinator.cluster import DynamoWorkers
from ampd.coordinator.coordinator import Coordinator
from ampd.coordinator.workers import Leg
from ampd.cost_model.scaled import ScaledCostModel
from ampd.errors import AmpdError, RequestError, RoundCancelled, SetupError, StateError
from ampd.policy.types import CostModel
from ampd.profiles import profile_of
from ampd.state.base import StateStore
from ampd.state.factory import open_store

log = logging.getLogger(__name__)

_COUNT_S = 15.0  # between two counts of the bound sessions


class DynamoCaller:
    """The client behind the frontend, as its request's context shows it."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def gone(self) -> bool:
        """See Caller."""
        return bool(self._context.is_stopped() or self._context.is_killed())

    def metadata(self) -> Mapping[str, str]:
        """See Caller."""
        return self._context.metadata  # type: ignore[no-any-return]

    def leg(self, id: str) -> Leg:
        """See Caller. Detached, so that stopping a leg is this process's own decision."""
        return self._context.detached(id)  # type: ignore[no-any-return]

    def trace(self) -> dict[str, str] | None:
        """See Caller."""
        return self._context.trace_headers() or None


class Handler:
    """The endpoint that the frontend calls.

    Errors are raised as the classes that Dynamo 1.6.1 maps to a status without taking this Coordinator out of its routing for
    seconds: InvalidArgument is a 400 with our own message, CannotConnect a 503, ConnectionTimeout a 504 (both with Dynamo's text).
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def generate(self, raw: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        """Preprocessed request -> engine outputs."""
        raw["token_ids"] = token_ids_to_list(raw.get("token_ids"))
        try:
            async with aclosing(self._coordinator.serve(raw, DynamoCaller(context))) as outputs:
                async for output in outputs:
                    yield output
        except RoundCancelled:
            return
        except RequestError as e:
            raise InvalidArgument(str(e)) from None
        except TimeoutError as e:
            raise ConnectionTimeout(f"request {context.id()}: a worker made no progress in time") from e
        except AmpdError as e:
            log.error("request %s failed: %s", context.id(), e)
            raise CannotConnect(str(e)) from e


async def run(graph: Graph, namespace: str, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError or SetupError at start."""
    stop = asyncio.Event()
    for sig in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(sig, stop.set)
    _check_model(graph)
    cost = _cost_model(graph)
    async with AsyncExitStack() as stack:
        store = open_store(graph)
        await store.connect()
        stack.push_async_callback(store.close)
        runtime = open_runtime()
        stack.callback(runtime.shutdown)
        coordinator = Coordinator(graph, store, await _workers(runtime, graph, namespace), cost)
        endpoint = runtime.endpoint(f"{namespace}-api.coordinator.generate")
        coordinator.counters.show_slow(lambda: store.slow)
        endpoint.metrics.register_prometheus_expfmt_callback(coordinator.counters.text)
        await register(graph, endpoint)
        # Dynamo hands out a future, not a coroutine.
        serving = asyncio.ensure_future(endpoint.serve_endpoint(Handler(coordinator).generate))
        ready()
        counting = asyncio.create_task(_count_bindings(coordinator, store))
        stack.callback(counting.cancel)
        log.info("serving model %s for graph %s", graph.model.served_name, graph.name)
        await _until(stop, serving)
        await _leave(coordinator, endpoint, graph.drain_s)
        serving.cancel()


def open_runtime() -> DistributedRuntime:
    """Dynamo's runtime, as the DYN_* variables ask for it. Raises SetupError."""
    discovery, plane = os.environ.get("DYN_DISCOVERY_BACKEND", "file"), os.environ.get("DYN_REQUEST_PLANE", "tcp")
    try:
        return DistributedRuntime(asyncio.get_running_loop(), discovery, plane)
    except Exception as e:  # Dynamo has no narrower class
        raise SetupError(f"Dynamo's runtime does not start: {e}; check the DYN_* variables") from e


async def _workers(runtime: DistributedRuntime, graph: Graph, namespace: str) -> DynamoWorkers:
    async def client(role: str, endpoint: str) -> Any:
        return await runtime.endpoint(f"{namespace}.{role}.{endpoint}").client()

    return DynamoWorkers(
        await client("prefill", "generate"),
        await client("decode", "generate"),
        await client("decode", "prefill"),
        await client("prefill", "kv"),
        await client("decode", "kv"),
        graph.transport.claim_timeout_s,
    )


async def register(graph: Graph, endpoint: Endpoint) -> None:
    """Register the graph's model card at `endpoint`."""
    model = graph.model
    config = ModelRuntimeConfig()
    config.context_length = model.max_model_len
    config.tool_call_parser = model.tool_call_parser
    config.reasoning_parser = model.reasoning_parser
    await register_model(
        ModelInput.Tokens,
        ModelType.Chat | ModelType.Completions,
        endpoint,
        model.path,
        model_name=model.served_name,
        worker_type=WorkerType.Aggregated,
        kv_cache_block_size=model.block_size,
        runtime_config=config,
        ignore_weights=True,
    )


def _check_model(graph: Graph) -> None:
    folder = Path(graph.model.path)
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise SetupError(
                f"model.path {graph.model.path!r} has no {name}; name a folder with a Hugging Face model and its tokenizer"
            )


def _cost_model(graph: Graph) -> CostModel:
    if graph.profile is None:
        log.warning("no profile: costs come from a coarse built-in model; set `profile` to a file measured on these engines")
        return cost_model.CoarseCostModel()
    profile = profile_of(
        graph.profile,
        model=graph.model.served_name,
        thetas=[group.tensor_parallel for group in graph.workers],
        block_size=graph.model.block_size,
        foreign=graph.foreign_profile,
    )
    cost = profile.cost_model(foreign=graph.foreign_profile)
    speed = graph.workers[0].sim.speed if graph.workers[0].engine == "sim" else 1.0
    return ScaledCostModel(cost, speed) if speed != 1.0 else cost


async def _count_bindings(coordinator: Coordinator, store: StateStore) -> None:
    """Keep the number of bound sessions up to date for the metrics, until cancelled."""
    while True:
        try:
            coordinator.counters.bindings.set(await store.sessions())
        except StateError as e:
            log.warning("bound sessions not counted: %s", e)
        await asyncio.sleep(_COUNT_S)


async def _until(stop: asyncio.Event, serving: asyncio.Task[None]) -> None:
    """Return when told to stop. Raises SetupError when the endpoint ends by itself."""
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({stopped, serving}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if serving.done() and not stop.is_set():
        serving.result()
        raise SetupError("the endpoint has ended by itself; is the discovery backend still there?")


async def _leave(coordinator: Coordinator, endpoint: Endpoint, drain_s: float) -> None:
    """Out of routing first, then let the running rounds end."""
    await endpoint.unregister_endpoint_instance()
    await coordinator.drain(drain_s)


def mark_ready(path: str | None) -> None:
    """Tell the launcher, which waits for the file, that this process serves."""
    if path:
        Path(path).touch()
