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
        family += self._family()
        # Helpers of a process that has ended in order need a moment to notice.
        patience = 1.0 if self.exit_code is not None else 0.0
        _, family = await asyncio.to_thread(psutil.wait_procs, family, timeout=patience)
        self.kill(family)
        await self.ended()

    def kill(self, family: list[psutil.Process] | None = None) -> None:
        """SIGKILL to the process, its group and its descendants, at once."""
        for member in self._family() if family is None else family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def _family(self) -> list[psutil.Process]:
        """Its descendants as they are now; empty once it has ended, for they are then nobody's children."""
        if self.exit_code is not None:
            return []
        try:
            return list(psutil.Process(self.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return []
