"""Dynamo's runtime inside a Python process, as suits one."""

from __future__ import annotations

import os

# Whatever its threads do for us is done under the interpreter's one lock. One for each core, Dynamo's default, has them wait for
# each other and wake each other up, a visible part of a short round.
_PREFERRED = {"DYN_RUNTIME_NUM_WORKER_THREADS": "1", "DYN_RUNTIME_MAX_BLOCKING_THREADS": "1"}


def prepare_runtime() -> None:
    """Set what the environment leaves open. To be called before the process's first DistributedRuntime is made."""
    for name, value in _PREFERRED.items():
        os.environ.setdefault(name, value)
