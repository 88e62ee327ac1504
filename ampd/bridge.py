"""Dynamo's runtime inside a Python process, as suits one."""

from __future__ import annotations

import os

_THREADS = "DYN_RUNTIME_NUM_WORKER_THREADS"


def prepare_runtime() -> None:
    """Leave Dynamo one thread, unless the environment says otherwise. To be called before the process's first DistributedRuntime.

    Whatever its threads do for us is done under the interpreter's one lock. One for each core, Dynamo's default, has them wait for
    each other and wake each other up, a visible part of a short round.
    """
    os.environ.setdefault(_THREADS, "1")
