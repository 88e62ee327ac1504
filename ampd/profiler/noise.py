"""Whether the machine was quiet: a fixed piece of work timed throughout, CPU time stolen by the hypervisor or used by others."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median, quantiles

import numpy as np
import psutil
from numpy.typing import NDArray

# Above these the run is called noisy.
MAX_REFERENCE_SPREAD = 1.25  # 90 % quantile of the reference's times over their median
MAX_STOLEN = 0.02  # of the CPUs' time
MAX_FOREIGN = 0.15  # CPUs in use by processes that are not this run's, on average
# A sample that lost more than this share of one CPU to others is spoilt.
_SPOILT_SHARE = 0.15
_SHORTEST_S = 0.25  # CPU times come in ticks of 10 ms: shorter samples are not judged one by one
_REFERENCE_EVERY_S = 1.0
_MIN_REFERENCES = 5
_BUFFER_FLOATS = 1 << 21  # 8 MiB: more than a core's own caches


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds since some start, summed over the CPUs that this process may use: in all, stolen, busy, and busy for this run."""

    wall: float
    total: float
    stolen: float
    busy: float
    own: float


def cpu_times(processes: Sequence[psutil.Process]) -> CpuTimes:
    """Now; `processes` are this run's. Zeros where the system tells nothing (no /proc)."""
    try:
        rows = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return CpuTimes(time.monotonic(), 0.0, 0.0, 0.0, 0.0)
    names = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = np.array([row.split()[1:9] for row in rows if row.split(" ", 1)[0] in names], dtype=np.float64).reshape(-1, 8)
    user, nice, system, _, _, irq, softirq, stolen = ticks.sum(axis=0) / os.sysconf("SC_CLK_TCK")
    total = ticks.sum() / os.sysconf("SC_CLK_TCK")
    return CpuTimes(time.monotonic(), float(total), float(stolen), float(user + nice + system + irq + softirq), _own(processes))


def _own(processes: Sequence[psutil.Process]) -> float:
    seconds = 0.0
    for process in processes:
        with suppress(psutil.Error):
            used = process.cpu_times()
            seconds += used.user + used.system
    return seconds


def lost_share(before: CpuTimes, after: CpuTimes) -> float:
    """CPUs that others had meanwhile: stolen, or busy for processes that are not this run's."""
    wall = max(after.wall - before.wall, 1e-9)
    foreign = (after.busy - before.busy) - (after.own - before.own)
    return (after.stolen - before.stolen + max(0.0, foreign)) / wall


class Watch:
    """Watches a run. `cores`: where the reference is timed, each in turn; the engines' cores. `read` gives the CPU times."""

    def __init__(self, cores: Sequence[int], read: Callable[[Sequence[psutil.Process]], CpuTimes] = cpu_times) -> None:
        self._cores, self._read_times = cores, read
        self._processes: list[psutil.Process] = []
        self._start: CpuTimes | None = None
        self._last = float("-inf")
        self.references: list[float] = []
        self.spoilt = 0

    def begin(self) -> None:
        """The engines have started and the measurements begin."""
        me = psutil.Process()
        self._processes = [me, *me.children(recursive=True)]
        self._start = self._read()

    def _read(self) -> CpuTimes:
        return self._read_times(self._processes)

    @contextmanager
    def sample(self, judged: bool = True) -> Iterator[list[bool]]:
        """Around one sample: the list it gives holds, afterwards, whether the sample was spoilt; never unless `judged`."""
        before, verdict = self._read(), [False]
        yield verdict
        after = self._read()
        verdict[0] = judged and after.wall - before.wall >= _SHORTEST_S and lost_share(before, after) > _SPOILT_SHARE
        self.spoilt += verdict[0]

    async def reference(self) -> None:
        """Time the reference, unless that has just been done. The engines rest meanwhile."""
        if time.monotonic() - self._last < _REFERENCE_EVERY_S:
            return
        core = self._cores[len(self.references) % len(self._cores)] if self._cores else None
        self.references.append(await asyncio.to_thread(_timed, core))
        self._last = time.monotonic()

    def report(self) -> list[str]:
        """One line for each sign of noise; empty when the machine was quiet."""
        lines = []
        if self._start is not None:
            lines += _taken(self._start, self._read())
        if len(self.references) >= _MIN_REFERENCES:
            slow = quantiles(self.references, n=10)[8] / median(self.references)
            if slow > MAX_REFERENCE_SPREAD:
                lines.append(
                    f"a fixed piece of work took {slow:.2f} times its median time in a tenth of {len(self.references)} runs"
                )
        if self.spoilt:
            lines.append(f"{self.spoilt} samples were taken again because other processes had the CPU")
        return lines


def _taken(start: CpuTimes, end: CpuTimes) -> list[str]:
    wall = max(end.wall - start.wall, 1e-9)
    stolen = (end.stolen - start.stolen) / max(end.total - start.total, 1e-9)
    foreign = ((end.busy - start.busy) - (end.own - start.own)) / wall
    lines = []
    if stolen > MAX_STOLEN:
        lines.append(f"the hypervisor took {100 * stolen:.1f} % of the CPU time")
    if foreign > MAX_FOREIGN:
        lines.append(f"other processes used {foreign:.2f} CPUs on average")
    return lines


@cache
def _buffer() -> NDArray[np.float32]:
    return np.ones(_BUFFER_FLOATS, dtype=np.float32)


def _timed(core: int | None) -> float:
    """CPU seconds of the reference on a core. Whom else the core served meanwhile is not in it: the CPU times tell that."""
    buffer, before = _buffer(), os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})  # of this thread alone
    try:
        started = time.thread_time()
        hashlib.sha256(buffer.data).digest()
        float(buffer.sum())
        return time.thread_time() - started
    finally:
        os.sched_setaffinity(0, before)
