"""A graph as processes of this machine, for as long as a block of code runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ampd.config import Graph, config_variables, dump_graph
from ampd.errors import ConfigError
from ampd.launch import preflight
from ampd.launch.models import model_folder, resolve_model
from ampd.launch.plan import GRAPH_FILE, Layout, ProcessSpec, base_url, components, plan, private_discovery, processes
from ampd.launch.progress import Progress, Quiet
from ampd.launch.readiness import wait_graph
from ampd.launch.supervisor import Supervisor
from ampd.state.factory import open_store

START_TIMEOUT_S = 600.0
# A unix socket's path may have 107 bytes; engines put sockets with long random names into the run folder's tmp/.
_LONGEST_RUN_DIR = 50


@dataclass(frozen=True, slots=True)
class RunningGraph:
    """A serving graph. `graph` is the resolved one that its processes read: model folder, port and profile are final."""

    url: str
    graph: Graph
    namespace: str
    run_dir: Path
    supervisor: Supervisor

    @property
    def pids(self) -> dict[str, int]:
        """Process id by process name: `redis`, `frontend`, `coordinator-0`, and `<group>-<index>` for workers."""
        return self.supervisor.pids

    @property
    def metrics(self) -> dict[str, str]:
        """URL of its Prometheus metrics by process name, the frontend's included."""
        host = self.graph.transport.host
        own = {s.name: f"{base_url(host, s.metrics_port)}/metrics" for s in self.supervisor.specs if s.metrics_port is not None}
        return {**own, "frontend": f"{self.url}/metrics"}

    @property
    def state_url(self) -> str:
        """URL of the Redis in use."""
        embedded = self.graph.state.url == "embedded"
        return f"unix://{self.run_dir / 'redis.sock'}" if embedded else self.graph.state.url

    async def change(self, graph: Graph, names: Sequence[str], timeout_s: float = START_TIMEOUT_S) -> None:
        """Restart the named processes with another graph of the same shape. Raises what `Supervisor.restart` does."""
        write_graph(graph, self.run_dir)
        for name in names:
            await self.supervisor.restart(name, timeout_s)


@asynccontextmanager
async def running_graph(
    graph: Graph,
    *,
    only: Sequence[str] = (),
    progress: Progress | None = None,
    start_timeout_s: float = START_TIMEOUT_S,
    watch: Callable[[Supervisor], None] = lambda supervisor: None,
) -> AsyncIterator[RunningGraph]:
    """Start a graph, yield it once a completion works, stop it at the end of the block in whatever way that comes.

    With `only`, start just these components; they join what the environment's DYN_* variables and `state.url` name.
    `watch` is handed the supervisor before the first process starts, for one who may have to `hurry` it.
    Raises ConfigError and SetupError before anything is started, ComponentDied and SetupError while starting. A process that dies
    later does not interrupt the block: `supervisor.wait_death()` tells.
    """
    progress = progress or Quiet()
    graph = await asyncio.to_thread(prepare, graph, progress, only)
    await check_state(graph)
    run_dir = make_run_dir()
    failed = True
    supervisor = None
    try:
        layout = make_layout(graph, run_dir, only)
        write_run_dir(graph, layout)
        supervisor = Supervisor(run_dir, child_environment(), progress)
        watch(supervisor)
        await supervisor.start(select(plan(graph, layout), only), start_timeout_s)
        url = base_url(graph.frontend.host, graph.frontend.port)
        if not only:
            await _answering(supervisor, url, graph.model.served_name, start_timeout_s)
        yield RunningGraph(url, graph, layout.namespace, run_dir, supervisor)
        failed = False
    except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
        failed = False
        raise
    finally:
        if supervisor is not None:
            await _to_the_end(supervisor.stop())
        remove_run_dir(run_dir, keep_logs=failed)


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await work that a cancellation must not leave half done."""
    task = asyncio.create_task(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    task.result()


def prepare(graph: Graph, progress: Progress, only: Sequence[str] = (), preferred_port: int = 0) -> Graph:
    """Check this machine against the graph and settle what the graph leaves open. Raises ConfigError and SetupError."""
    check_components(graph, only)
    preflight.check_graph(graph)
    preflight.check_packages(graph)
    resolve_model(graph, progress.note)
    return settle(graph, preferred_port)


def check_components(graph: Graph, only: Sequence[str]) -> None:
    """Raise ConfigError unless the graph has these components and they can be started without the others."""
    unknown = sorted(set(only) - set(components(graph)))
    if unknown:
        raise ConfigError(f"--component {unknown[0]}: the graph has {', '.join(components(graph))}")
    if only and graph.state.url == "embedded":
        raise ConfigError("--component needs a Redis that the components share: set state.url to its URL")


async def check_state(graph: Graph) -> None:
    """Raise ConfigError or SetupError unless a Redis of the user's own answers."""
    if graph.state.url != "embedded":
        store = open_store(graph)
        try:
            await store.connect()
        finally:
            await store.close()


def settle(graph: Graph, preferred_port: int = 0) -> Graph:
    """The graph with its model folder, profile and port made final. Raises SetupError when the port is taken."""
    front = graph.frontend
    port = preflight.choose_port(front.host, front.port, preferred_port)
    return graph.model_copy(
        update={
            "model": graph.model.model_copy(update={"path": str(model_folder(graph))}),
            "profile": graph.profile and str(Path(graph.profile).absolute()),
            "frontend": front.model_copy(update={"port": port}),
        }
    )


def make_layout(graph: Graph, run_dir: Path, only: Sequence[str] = ()) -> Layout:
    """Names, ports and planes of a run: private ones, or shared ones when only some components are started."""
    workers = sum(len(processes(group)) for group in graph.workers)
    layout = Layout(
        run_dir=run_dir,
        namespace=f"{graph.name}-{secrets.token_hex(3)}",
        redis_server=preflight.find_redis_server() if graph.state.url == "embedded" else None,
        kv_ports=preflight.free_ports(graph.transport.host, workers),
        discovery=private_discovery(run_dir),
        metrics_ports=preflight.metrics_ports(graph.transport.host, workers + graph.coordinator.replicas, graph.metrics_port),
    )
    if not only:
        return layout
    shared = {**private_discovery(Path(tempfile.gettempdir()) / f"ampd-{graph.name}"), **_dynamo_variables()}
    return replace(layout, namespace=os.environ.get("DYN_NAMESPACE", graph.name), discovery=shared)


def select(specs: Sequence[ProcessSpec], only: Sequence[str]) -> list[ProcessSpec]:
    """The processes of the named components; all without names."""
    return [spec for spec in specs if not only or spec.component in only]


def child_environment() -> dict[str, str]:
    """This process's environment less the configuration variables: the run folder's graph.yaml holds their effect already."""
    mine = config_variables(os.environ)
    # At its default level Dynamo writes two lines a request in every process. Where RUST_BACKTRACE is set it walks the stack for
    # all error values that it makes, some in every request that goes well; panics still show theirs.
    return {"DYN_LOG": "warn", "RUST_LIB_BACKTRACE": "0", **{name: text for name, text in os.environ.items() if name not in mine}}


def make_run_dir() -> Path:
    """A private folder with a short path."""
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="ampd-", dir=base if len(base) <= _LONGEST_RUN_DIR else "/tmp"))


def write_run_dir(graph: Graph, layout: Layout) -> None:
    """Fill the run folder with what the processes expect."""
    for name in ("logs", "ready", "tmp", "discovery"):
        (layout.run_dir / name).mkdir()
    write_graph(graph, layout.run_dir)


def write_graph(graph: Graph, run_dir: Path) -> None:
    """Write the graph that the processes of a run read at their start."""
    (run_dir / GRAPH_FILE).write_text(dump_graph(graph))


def remove_run_dir(run_dir: Path, keep_logs: bool) -> None:
    """Remove the run folder; with `keep_logs` all of it but its logs."""
    if not keep_logs or not (run_dir / "logs").is_dir():
        shutil.rmtree(run_dir, ignore_errors=True)
        return
    for entry in run_dir.iterdir():
        if entry.name == "logs":
            continue
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _dynamo_variables() -> Mapping[str, str]:
    return {name: text for name, text in os.environ.items() if name.startswith("DYN_")}


async def _answering(supervisor: Supervisor, url: str, model: str, timeout_s: float) -> None:
    """Wait for the graph's first answer, or for the death of a process, whichever is first."""
    answer = asyncio.create_task(wait_graph(url, model, timeout_s))
    death = asyncio.create_task(supervisor.wait_death())
    try:
        await asyncio.wait({answer, death}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        pending = [task for task in (death, answer) if task.cancel()]
        await asyncio.gather(*pending, return_exceptions=True)
    for task in (death, answer):
        if not task.cancelled():
            task.result()
