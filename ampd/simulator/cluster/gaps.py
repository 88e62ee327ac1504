"""Percentiles of token gaps. The log of a worker's steps has an entry for each run of steps of one batch, not for each step.

A round's gaps are those of a range of step numbers. They are written out with numpy, for many rounds at a time, and forgotten.
"""

from __future__ import annotations

from array import array

import numpy as np

from ampd.simulator.types import Floats, Ints

PERCENTILE = 95.0
# Steps after which the log of a worker is worked off.
_MOST_STEPS = 1 << 18


class Gaps:
    """The step log of one worker, and the rounds that wait for their percentile: row, first step, number of gaps."""

    __slots__ = ("_begin", "_counts", "_first", "_more", "_odd", "_out", "_rows", "_spans", "_steps", "_sums")

    def __init__(self, out: array[float]) -> None:
        self._out = out  # percentiles by row
        self._begin = 0
        self._counts, self._first, self._more = array("q"), array("d"), array("d")
        self._steps = 0
        self._rows, self._spans, self._sums = array("q"), array("q"), array("q")
        self._odd: list[tuple[int, list[tuple[int, int]], list[float]]] = []

    def ran(self, count: int, first_s: float, more_s: float) -> None:
        """`count` steps: first_s, first_s + more_s, and so on."""
        self._counts.append(count)
        self._first.append(first_s)
        self._more.append(more_s)
        self._steps += count

    def ended(self, row: int, step: int, count: int) -> None:
        """The round of that row had `count` gaps, those of the steps from number `step` on."""
        self._rows.append(row)
        self._spans.append(step)
        self._sums.append(count)

    def ended_in_parts(self, row: int, spans: list[tuple[int, int]], pauses: list[float]) -> None:
        """The round was preempted: its gaps are those of the steps in `spans`, (first, number) each, and the `pauses`."""
        self._odd.append((row, spans, pauses))

    @property
    def full(self) -> bool:
        """Whether it is time to `work_off`."""
        return self._steps >= _MOST_STEPS

    def work_off(self, oldest: int) -> None:
        """Compute the percentiles of all rounds that have ended; steps before number `oldest` are not needed again."""
        values = _written_out(_ints(self._counts), _floats(self._first), _floats(self._more))
        starts, counts, rows = _ints(self._spans) - self._begin, _ints(self._sums), _ints(self._rows)
        for count in np.unique(counts).tolist():
            chosen = counts == count
            gaps = values[starts[chosen][:, None] + np.arange(count)]
            for row, value in zip(rows[chosen].tolist(), _percentiles(gaps).tolist(), strict=True):
                self._out[row] = value
        for row, spans, pauses in self._odd:
            parts = [values[first - self._begin : first - self._begin + count] for first, count in spans]
            self._out[row] = float(np.percentile(np.concatenate([*parts, np.asarray(pauses)]), PERCENTILE))
        self._forget(values[max(0, oldest - self._begin) :], oldest)

    def _forget(self, values: Floats, oldest: int) -> None:
        self._begin = max(self._begin, oldest)
        self._steps = len(values)
        self._counts = array("q", [1]) * len(values)
        self._first = array("d", values.tobytes())
        self._more = array("d", bytes(8 * len(values)))
        self._rows, self._spans, self._sums = array("q"), array("q"), array("q")
        self._odd = []


def _ints(values: array[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _floats(values: array[float]) -> Floats:
    return np.array(values, dtype=np.float64)


def _written_out(counts: Ints, first: Floats, more: Floats) -> Floats:
    """The seconds of every single step."""
    if not len(counts):
        return np.zeros(0)
    ends = np.cumsum(counts)
    within = np.arange(ends[-1]) - np.repeat(ends - counts, counts)
    seconds: Floats = np.repeat(first, counts) + within * np.repeat(more, counts)
    return seconds


def _percentiles(gaps: Floats) -> Floats:
    """Of each row, as numpy.percentile has it (linear interpolation), by partition."""
    at = PERCENTILE / 100 * (gaps.shape[1] - 1)
    low = int(at)
    high = min(low + 1, gaps.shape[1] - 1)
    gaps.partition((low, high), axis=1)
    found: Floats = gaps[:, low] + (at - low) * (gaps[:, high] - gaps[:, low])
    return found
