"""Starts the processes of a graph in order, notices when one dies, and stops them in order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from ampd.errors import ComponentDied, SetupError
from ampd.launch import guard
from ampd.launch.child import Child
from ampd.launch.plan import ProcessSpec
from ampd.launch.progress import Progress
from ampd.launch.readiness import is_ready

POLL_S = 0.1


class Supervisor:
    """The processes of one run. `stop` must be called, whatever `start` did."""

    def __init__(self, run_dir: Path, base_env: Mapping[str, str], progress: Progress) -> None:
        self._logs = run_dir / "logs"
        self._env = base_env
        self._progress = progress
        self._children: list[Child] = []
        self._mourned: set[Child] = set()
        self._hurry = False
        # Holds the process groups, so that none outlives a launcher that was killed.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(run_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    @property
    def pids(self) -> dict[str, int]:
        """Process id by process name."""
        return {child.spec.name: child.pid for child in self._children}

    @property
    def specs(self) -> list[ProcessSpec]:
        """What was started, in order, each process once."""
        return list({child.spec.name: child.spec for child in self._children}.values())

    async def start(self, specs: Sequence[ProcessSpec], timeout_s: float) -> None:
        """Start the processes stage by stage, each stage once the one before serves.

        Raises ComponentDied when one ends meanwhile, SetupError when one does not serve within `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        for _, stage in itertools.groupby(specs, key=lambda spec: spec.start_stage):
            waiting = [await self._spawn(spec) for spec in stage]
            while waiting:
                self.check()
                waiting = await self._look(waiting, deadline)

    async def _look(self, waiting: Sequence[Child], deadline: float) -> list[Child]:
        """Which of the processes do not serve yet. Raises SetupError past the deadline; pauses if there are any."""
        left = [child for child in waiting if not await self._serves(child)]
        if left and time.monotonic() > deadline:
            raise SetupError(self._report(left[0], f"does not serve after {time.monotonic() - left[0].started_at:.0f} s"))
        await asyncio.sleep(POLL_S if left else 0)
        return left

    async def restart(self, name: str, timeout_s: float) -> None:
        """End a process, unless it has ended already, and start it anew.

        Raises SetupError when there is none of that name or it does not serve within `timeout_s`, ComponentDied when it ends again.
        """
        known = [child for child in self._children if child.spec.name == name]
        if not known:
            raise SetupError(f"{name} cannot be restarted: the graph has {', '.join(self.pids)}")
        await self._stop_one(known[-1])
        self._mourned.update(known)
        spec = known[-1].spec
        for mark in (spec.ready_file, spec.ready_socket):
            if mark is not None:
                mark.unlink(missing_ok=True)
        waiting = [await self._spawn(spec)]
        deadline = time.monotonic() + timeout_s
        while waiting:
            self._check(waiting)
            waiting = await self._look(waiting, deadline)

    def check(self) -> None:
        """Raise ComponentDied, with the last lines of its log, if a process has ended; once for each process."""
        self._check(self._children)

    def _check(self, children: Sequence[Child]) -> None:
        for child in children:
            if child.exit_code is not None and child not in self._mourned:
                self._mourned.add(child)
                self._progress.state(child.spec.name, "died", time.monotonic() - child.started_at)
                raise ComponentDied(self._report(child, child.describe_end()))

    async def wait_death(self) -> None:
        """Wait until another process ends; then raise ComponentDied."""
        waits = [asyncio.ensure_future(child.ended()) for child in self._children if child not in self._mourned]
        if not waits:
            raise ComponentDied("all processes of the graph have ended")
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self.check()

    async def stop(self) -> None:
        """End all processes, the entrance first and the state last. Never raises for a process that has ended already."""
        by_stage = sorted(self._children, key=lambda child: child.spec.stop_stage)
        for _, stage in itertools.groupby(by_stage, key=lambda child: child.spec.stop_stage):
            await asyncio.gather(*(self._stop_one(child) for child in stage))
        self._dismiss_guard()

    def hurry(self) -> None:
        """SIGKILL everything at once; `stop` then returns soon."""
        self._hurry = True
        for child in self._children:
            child.kill()

    async def _spawn(self, spec: ProcessSpec) -> Child:
        self._progress.state(spec.name, "starting", 0.0)
        child = await Child.spawn(spec, self._env, self._logs / f"{spec.name}.log")
        self._children.append(child)
        self._tell_guard(str(child.pid))
        return child

    async def _serves(self, child: Child) -> bool:
        if not await is_ready(child.spec):
            return False
        self._progress.state(child.spec.name, "ready", time.monotonic() - child.started_at)
        return True

    async def _stop_one(self, child: Child) -> None:
        began = time.monotonic()
        running = child.exit_code is None
        await child.stop(0.0 if self._hurry else child.spec.grace_s)
        if running:
            self._progress.state(child.spec.name, "stopped", time.monotonic() - began)

    def _report(self, child: Child, what: str) -> str:
        return f"{child.spec.name} {what}; the last lines of its log ({child.log}):\n{child.tail()}"

    def _tell_guard(self, line: str) -> None:
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.write(line + "\n")
            self._guard.stdin.flush()

    def _dismiss_guard(self) -> None:
        self._tell_guard("done")
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.close()
        self._guard.wait()
