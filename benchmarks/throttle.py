"""A share of a core for a process, where nobody may make control groups: it is stopped for the rest of each period."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

_PERIOD_S = 0.02


@asynccontextmanager
async def throttled(pids: Sequence[int], share: float) -> AsyncIterator[None]:
    """Let each process run for `share` (above 0, at most 1) of the time. They run freely afterwards."""
    if share >= 1:
        yield
        return
    tasks = [asyncio.create_task(_run_and_stop(pid, share, i / len(pids))) for i, pid in enumerate(pids)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run_and_stop(pid: int, share: float, phase: float) -> None:
    """`phase` spreads the processes' turns, so that they do not all run at once."""
    clock = asyncio.get_running_loop().time
    begins = clock() + phase * _PERIOD_S
    try:
        while True:
            await asyncio.sleep(begins + share * _PERIOD_S - clock())
            os.kill(pid, signal.SIGSTOP)
            begins += _PERIOD_S
            await asyncio.sleep(begins - clock())
            os.kill(pid, signal.SIGCONT)
    finally:
        os.kill(pid, signal.SIGCONT)
