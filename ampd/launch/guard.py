"""Ends a graph's processes when its launcher dies without being able to (SIGKILL, out of memory).

Run by path as a process of its own, standard library only. Reads process group ids from its standard input, one a line; `done`
means that the launcher has ended them itself. At the end of input without `done` it ends the groups and removes the run folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time

GRACE_S = 8.0


def main() -> None:
    """Wait for the launcher's end and clean up after it. The run folder is the only argument."""
    groups: list[int] = []
    for line in sys.stdin:
        if line.strip() == "done":
            return
        groups.append(int(line))
    for group in groups:
        send(group, signal.SIGTERM)
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and any(send(group, 0) for group in groups):
        time.sleep(0.1)
    for group in groups:
        send(group, signal.SIGKILL)
    shutil.rmtree(sys.argv[1], ignore_errors=True)


def send(group: int, number: int) -> bool:
    """Signal a process group; False when it is gone."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
