"""Times of short calls, and the machine they were taken on."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterable

import numpy as np


def timed(calls: Iterable[Callable[[], object]]) -> tuple[float, float]:
    """(median, 99th percentile) of the seconds that the calls take, each timed by itself, once."""
    seconds = []
    for call in calls:
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds)), float(np.quantile(seconds, 0.99))


def machine() -> str:
    """One line for below a table."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}"
