"""Whether the machine was quiet: the CPU time stolen by the hypervisor or used by others, and what `pace` has seen."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from ampd.profiler.pace import Pace

# Above these the run is called noisy.
MAX_STOLEN = 0.02  # of the CPUs' time
MAX_FOREIGN = 0.15  # CPUs in use by processes that are not this run's, on average
# A sample that lost more than this share of one CPU to others is spoilt.
_SPOILT_SHARE = 0.15
_SHORTEST_S = 0.25  # CPU times come in ticks of 10 ms: shorter samples are not judged one by one


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
    """Watches a run. `read` gives the CPU times."""

    def __init__(self, read: Callable[[Sequence[psutil.Process]], CpuTimes] = cpu_times) -> None:
        self._read_times = read
        self.pace: Pace | None = None
        self._processes: list[psutil.Process] = []
        self._start: CpuTimes | None = None
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

    def report(self) -> list[str]:
        """One line for each sign of noise; empty when the machine was quiet."""
        lines = []
        if self._start is not None:
            lines += _taken(self._start, self._read())
        if self.pace is not None:
            lines += self.pace.report()
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
