"""The processes that an engine starts, and their certain end."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress

import psutil
from psutil import Process

log = logging.getLogger(__name__)


def trees(roots: Iterable[int]) -> list[Process]:
    """The given processes and all below them."""
    found = []
    for pid in roots:
        with suppress(psutil.NoSuchProcess):
            root = Process(pid)
            found += [root, *root.children(recursive=True)]
    return found


def end_processes(processes: Sequence[Process], timeout_s: float) -> None:
    """Wait for processes of one's own to end, and kill those that do not."""
    _, stuck = psutil.wait_procs(processes, timeout=timeout_s)
    for process in stuck:
        log.warning("engine process %d did not end, killing it", process.pid)
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stuck, timeout=timeout_s)
