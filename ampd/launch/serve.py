"""`ampd serve`: run a graph in the foreground until a signal, a death, or an error."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ampd.config import Graph
from ampd.errors import ComponentDied
from ampd.launch import preflight
from ampd.launch.models import model_folder
from ampd.launch.plan import plan
from ampd.launch.progress import Progress, for_console
from ampd.launch.running import RunningGraph, check_components, make_layout, prepare, running_graph, select, settle
from ampd.launch.supervisor import Supervisor

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(graph: Graph, only: Sequence[str], start_timeout_s: float, keep_going: bool, console: Console) -> None:
    """Run a graph until Ctrl-C or SIGTERM. Raises ConfigError, SetupError, ComponentDied."""
    progress = for_console(console)
    for number in _STOP_SIGNALS:
        signal.signal(number, _interrupt)
    try:
        # Before the event loop: making the demo model blocks, and a signal must be able to end it.
        graph = prepare(graph, progress, only, preflight.PREFERRED_PORT)
        asyncio.run(_serve(graph, only, start_timeout_s, keep_going, progress))
    except KeyboardInterrupt:
        progress.note("stopped before the start")
    finally:
        progress.close()


def dry_run(graph: Graph, only: Sequence[str]) -> None:
    """Print the processes that `serve` would start, with their commands and what they add to the environment."""
    check_components(graph, only)
    graph = settle(graph, preflight.PREFERRED_PORT)
    layout = make_layout(graph, Path("$RUN_DIR"), only)
    missing = "" if model_folder(graph).is_dir() else " (made at the first start)"
    print(f"# model {graph.model.served_name}: {graph.model.path}{missing}")
    print("# $RUN_DIR is a private temporary folder; ports and namespace differ from run to run")
    specs = select(plan(graph, layout), only)
    shared = dict(set.intersection(*(set(spec.env.items()) for spec in specs if spec.kind != "redis")))
    for name, text in sorted(shared.items()):
        print(f"export {name}={_quote(text)}")
    for spec in specs:
        own = [f"{name}={_quote(text)}" for name, text in sorted(spec.env.items()) if name not in shared]
        print(f"\n# {spec.name}")
        print(*own, *map(_quote, spec.argv))


def _quote(word: str) -> str:
    return f'"{word}"' if "$RUN_DIR" in word else shlex.quote(word)


async def _serve(graph: Graph, only: Sequence[str], start_timeout_s: float, keep_going: bool, progress: Progress) -> None:
    began = time.monotonic()
    stop = _StopOnSignal(progress)
    try:
        async with running_graph(graph, only=only, progress=progress, start_timeout_s=start_timeout_s, watch=stop.watch) as running:
            _announce(running, only, time.monotonic() - began, progress)
            await _until_death(running, keep_going, progress)
    except asyncio.CancelledError:
        if not stop.asked:
            raise
        progress.note("stopped")


async def _until_death(running: RunningGraph, keep_going: bool, progress: Progress) -> None:
    while True:
        try:
            await running.supervisor.wait_death()
        except ComponentDied as e:
            if not keep_going:
                raise
            progress.note(f"{e}\nthe rest of the graph keeps running")


class _StopOnSignal:
    """The first signal stops the graph in order, the second kills it."""

    def __init__(self, progress: Progress) -> None:
        self.asked = False
        self._progress = progress
        self._supervisor: Supervisor | None = None
        self._task = asyncio.current_task()
        for number in _STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._signalled)

    def watch(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def _signalled(self) -> None:
        if self.asked and self._supervisor is not None:
            self._supervisor.hurry()
        elif not self.asked and self._task is not None:
            self.asked = True
            self._progress.note("stopping; a second signal kills")
            self._task.cancel()


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _announce(running: RunningGraph, only: Sequence[str], seconds: float, progress: Progress) -> None:
    progress.close()
    if only:
        progress.note(f"ready in {seconds:.0f} s: {', '.join(running.pids)}, namespace {running.namespace}")
        return
    question = [{"role": "user", "content": "Name the capital of Italy."}]
    body = {"model": running.graph.model.served_name, "messages": question, "max_tokens": 40, "temperature": 0}
    curl = f"curl -s {running.url}/v1/chat/completions -H 'content-type: application/json' -d {shlex.quote(json.dumps(body))}"
    progress.note(
        f"ready in {seconds:.0f} s: {running.url} serves {running.graph.model.served_name}; Ctrl-C stops it. Try:\n  {curl}"
    )
    progress.note(f"Prometheus metrics: {', '.join(f'{url} ({name})' for name, url in running.metrics.items())}")
    progress.close()
