"""Habits of the stack below that matter where an engine has few cores: two busy loops, made to sleep, and a thread moved away."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Between two polls of NIXL's progress thread, microseconds; NIXL rounds it up to whole milliseconds of poll().
PROGRESS_DELAY_US = 100
# How long a vLLM process spins on its message queue before it waits for a notification, seconds (vLLM: 1 s).
SPIN_S = 0.005


@contextmanager
def relaxed_progress_thread(delay_us: int = PROGRESS_DELAY_US) -> Iterator[None]:
    """Give NIXL agents made meanwhile a progress thread that sleeps.

    NIXL's Python agent hard-codes a delay of 0: the thread takes a whole core for as long as the agent lives, and vLLM binds
    it to the cores of its own worker. Progress itself is still wanted: it completes reads while the engine computes.
    """
    from vllm.distributed.nixl_utils import NixlWrapper

    binding: Any = sys.modules[NixlWrapper.__module__].nixlBind
    make_agent = binding.nixlAgent

    def make_relaxed(name: str, config: Any) -> Any:
        config.pthrDelay = delay_us
        return make_agent(name, config)

    binding.nixlAgent = make_relaxed
    try:
        yield
    finally:
        binding.nixlAgent = make_agent


@contextmanager
def own_cores() -> Iterator[None]:
    """Leave the calling thread on the cores it was bound to.

    On a CPU vLLM's NIXL worker moves the thread that makes it, which is the one that computes, to the last core of the NUMA node:
    all engines of a machine then compute on that one core.
    """
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        yield
    finally:
        if cores is not None:
            os.sched_setaffinity(0, cores)


def limit_queue_spin(seconds: float = SPIN_S) -> None:
    """Bound the spinning of this process's shared-memory queue readers.

    While a worker computes, its engine process spins on the reply for up to a second; with pinned KV the worker is polled now
    and then and would spin all the time in between. Readers that have stopped spinning are woken by vLLM's own notification.
    """
    from vllm.distributed.device_communicators.shm_broadcast import SpinCondition

    wait = SpinCondition.wait
    if getattr(wait, "limited", False):
        return

    def limited_wait(self: Any, timeout_ms: int | None = None) -> None:
        self.busy_loop_s = min(self.busy_loop_s, seconds)
        wait(self, timeout_ms)

    limited_wait.limited = True  # type: ignore[attr-defined]
    SpinCondition.wait = limited_wait
