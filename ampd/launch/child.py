"""One child process: its log, its end, and the processes it started itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import psutil

from ampd.errors import SetupError
from ampd.launch.plan import ProcessSpec

TAIL_LINES = 15
# Seconds for helpers to end by themselves once the process that they serve is gone.
LINGER_S = 1.0


class Child:
    """A running process of a graph. It leads a process group of its own, so that a terminal's Ctrl-C does not reach it."""

    def __init__(self, spec: ProcessSpec, process: asyncio.subprocess.Process, log: Path) -> None:
        self.spec = spec
        self.log = log
        self.started_at = time.monotonic()
        self._process = process
        self._ended = asyncio.create_task(process.wait(), name=f"wait {spec.name}")

    @classmethod
    async def spawn(cls, spec: ProcessSpec, base_env: Mapping[str, str], log: Path) -> Child:
        """Start the process with its output in `log`. Raises SetupError when its program cannot be run."""
        with log.open("ab") as out:
            try:
                process = await asyncio.create_subprocess_exec(
                    *spec.argv,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env={**base_env, **spec.env},
                    start_new_session=True,
                )
            except OSError as e:
                raise SetupError(f"{spec.name} cannot be started: {spec.argv[0]}: {e.strerror}") from None
        return cls(spec, process, log)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    async def ended(self) -> int:
        """Wait for the process's own end. May be called by many."""
        return await asyncio.shield(self._ended)

    def describe_end(self) -> str:
        """`exited with code 3` or `was killed by SIGKILL`."""
        code = self.exit_code
        if code is None:
            return "is still running"
        return f"exited with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"

    def tail(self) -> str:
        """The last lines of its log."""
        with self.log.open(errors="replace") as lines:
            return "".join(deque(lines, TAIL_LINES)).rstrip() or "(empty)"

    async def stop(self, grace_s: float) -> None:
        """SIGTERM to the process, which ends its own helpers; SIGKILL to whatever is left of both after `grace_s`."""
        family = self._family()
        if self.exit_code is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ended(), grace_s)
        # Helpers of a process that has ended in order need a moment to notice.
        await _gone(family, LINGER_S if self.exit_code is not None else 0.0)
        family = [*family, *self._family()]
        self.kill(family)
        await _gone(family, LINGER_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self.ended()

    def kill(self, family: list[psutil.Process] | None = None) -> None:
        """SIGKILL to the process and its helpers, at once.

        Python's resource trackers are spared: they end with those they serve, and remove the shared memory that these leave.
        """
        for member in self._family() if family is None else family:
            with contextlib.suppress(psutil.NoSuchProcess):
                if not any("resource_tracker" in word for word in member.cmdline()):
                    member.kill()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    def _family(self) -> list[psutil.Process]:
        """Its descendants, and the members of its process group that have lost their parents."""
        found: dict[int, psutil.Process] = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            if self.exit_code is None:
                found = {child.pid: child for child in psutil.Process(self.pid).children(recursive=True)}
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError):
                if process.pid != self.pid and os.getpgid(process.pid) == self.pid:
                    found[process.pid] = process
        return list(found.values())


async def _gone(processes: list[psutil.Process], within_s: float) -> None:
    await asyncio.to_thread(psutil.wait_procs, processes, timeout=within_s)
