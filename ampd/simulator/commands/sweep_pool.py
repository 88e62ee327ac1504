"""Points over processes. What comes back depends on the points alone, never on how many processes there are or which is faster."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import TypeVar

Point = TypeVar("Point")
Result = TypeVar("Result")


def run_points(
    compute: Callable[[Point], Result], points: Sequence[Point], jobs: int, done: Callable[[int, Result], None]
) -> None:  # fmt: skip
    """Compute every point and report it by its index as soon as it is known, in any order; `jobs` 1: in this process, in order.

    `compute` is a module's function, its points and results can be sent to another process. Its first error ends the run: what
    is under way then is let go.
    """
    if jobs == 1 or len(points) < 2:
        for i, point in enumerate(points):
            done(i, compute(point))
        return
    # Spawned, not forked: a forked child of a threaded parent may inherit a lock that nobody will release.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(points)), context, initializer=_end_with_parent) as pool:
        futures: dict[Future[Result], int] = {pool.submit(compute, point): i for i, point in enumerate(points)}
        try:
            for future in as_completed(futures):
                done(futures[future], future.result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _end_with_parent() -> None:
    """A killed parent tells its workers nothing, and they would wait for their next point for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.join,), daemon=True).start()


def _watch(parent_ended: Callable[[], None]) -> None:
    parent_ended()
    os._exit(1)
