"""The rows of Records, written as rounds end."""

from __future__ import annotations

from array import array
from math import nan
from typing import Any

import numpy as np

from ampd.simulator.cluster.job import Job
from ampd.simulator.types import Records

# In the order of the values in `add`. All are kept as doubles, which hold every integer here exactly.
_INTS = ("session", "number", "prompt", "l_hist", "held", "output", "path", "worker", "decode")
_FLOATS = ("arrived_s", "ttft_s", "itl_s", "ended_s", "queued_s", "moved_s")


class RecordBook:
    """`itl_p95_s` is filled in later, by row. `late`: rounds whose TTFT was over `late_s`."""

    def __init__(self, late_s: float) -> None:
        self._rows = array("d")
        self.itl_p95_s = array("d")
        self._late_s = late_s
        self.late = 0

    def __len__(self) -> int:
        return len(self.itl_p95_s)

    def add(self, now: float, job: Job) -> int:
        """A round has ended; returns its row."""
        ttft, gaps = job.first_at - job.arrived, job.output - 1
        itl = (now - job.first_at) / gaps if gaps else nan
        self._rows.extend((
            job.index, job.number, job.prompt, job.reused, job.own, job.output, job.path, job.worker, job.decode,
            job.arrived, ttft, itl, now, job.queued_s, job.moved_s,
        ))  # fmt: skip
        self.itl_p95_s.append(nan)
        if ttft > self._late_s:
            self.late += 1
        return len(self.itl_p95_s) - 1

    def records(self) -> Records:
        """All rows so far."""
        columns = np.array(self._rows).reshape(-1, len(_INTS) + len(_FLOATS)).T
        found: dict[str, Any] = {name: column.astype(np.int64) for name, column in zip(_INTS, columns, strict=False)}
        found |= {name: column.copy() for name, column in zip(_FLOATS, columns[len(_INTS) :], strict=True)}
        return Records(**found, itl_p95_s=np.array(self.itl_p95_s))
