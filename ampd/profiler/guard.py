"""Ends a run's engines when the run dies without being able to (SIGKILL, out of memory).

vLLM's engine processes outlive a killed owner. This is run by path as a process of its own, standard library only. Its standard
input is held open by the run; at its end every process is killed whose environment carries the run's mark, which engines inherit.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

MARK = "AMPD_PROFILE_RUN"
_GIVE_UP_S = 10.0


def main() -> None:
    """Wait for the end of standard input; the mark's value is the only argument."""
    sys.stdin.read()
    entry = f"{MARK}={sys.argv[1]}".encode()
    ends_at = time.monotonic() + _GIVE_UP_S
    # Again until none is left: one that was just starting another has had time to.
    while (pids := list(marked(entry))) and time.monotonic() < ends_at:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def marked(entry: bytes) -> Iterator[int]:
    """Processes with this entry in their environment. None where there is no /proc."""
    if not os.path.isdir("/proc/self"):
        return
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    if entry in file.read().split(b"\0"):
                        yield int(name)
            except OSError:
                continue  # gone, or another user's


if __name__ == "__main__":
    main()
