"""Online calibration: by which factor a worker's times differ from its profile's, learnt from the tasks it serves.

A factor follows the median of log(measured / predicted) over windows of tasks, each task weighing as many seconds as were predicted
for it, but never more than all others together. So one task decides nothing, however wrong its time. A window lasts until enough
tasks are in it and enough time has passed; it then moves the factor a part of the way, the further the longer it took and the more
work it saw beside those before. So a few brief tasks, of which half may be overhead, leave what long ones have taught. Time alone
moves nothing: without tasks every factor stays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, isfinite, log
from typing import Literal, get_args

CostFunction = Literal["t_pre", "t_dec", "t_mixed", "t_kv"]
FUNCTIONS: tuple[CostFunction, ...] = get_args(CostFunction)

# A worker that has not measured a function yet takes the factor of one that the same engine computes: what slows one slows both.
_STANDS_IN: Mapping[CostFunction, CostFunction] = {"t_mixed": "t_dec", "t_pre": "t_dec"}
_OTHERS = 0.9  # the most that one task weighs, as a share of all others of its window
_MOST = 256  # tasks of a window; older ones drop out
_MEMORY = 4.0  # what is usual follows so many times slower than factors do


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast and how far factors move.

    A window has `least_tasks` and lasts `window_s`. One of usual work moves a factor's logarithm by the share `seconds / time_s` of
    the way, one of less work by less; none by more than half, and a median that is off by more than `jump` counts as off by `jump`.
    Factors stay within 1 / bound and bound.
    """

    window_s: float = 2.0
    least_tasks: int = 3  # two at least: a lone one says nothing
    time_s: float = 8.0
    jump: float = 2.0
    bound: float = 4.0


DEFAULT_PACE = Pace()


class Factor:
    """The factor of one function on one worker. 1 until a window has been measured."""

    __slots__ = ("_began", "_log", "_pace", "_tasks", "_work_s", "measured")

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._log = 0.0
        self._tasks: deque[tuple[float, float]] = deque(maxlen=_MOST)
        self._began = 0.0
        self._work_s = 0.0  # of a usual window
        self.measured = False

    @property
    def value(self) -> float:
        """Measured over predicted."""
        return exp(self._log)

    def add(self, predicted_s: float, measured_s: float, now: float) -> bool:
        """A task has been measured, at `now` on any steady clock in seconds. Returns whether that has moved the factor.

        Times that are no positive finite numbers say nothing and are passed over.
        """
        if not (predicted_s > 0 and measured_s > 0 and isfinite(predicted_s) and isfinite(measured_s)):
            return False
        if not self._tasks:
            self._began = now
        self._tasks.append((log(measured_s / predicted_s), predicted_s))
        if len(self._tasks) < self._pace.least_tasks or now - self._began < self._pace.window_s:
            return False
        self._move(now - self._began)
        self._tasks.clear()
        self.measured = True
        return True

    def _move(self, seconds: float) -> None:
        pace = self._pace
        median, work_s = _median(self._tasks)
        share = min(0.5, seconds / pace.time_s)
        usual_s = self._work_s or work_s
        self._work_s = usual_s + share / _MEMORY * (work_s - usual_s)
        step = min(0.5, share * work_s / self._work_s)
        self._log = _clamped(self._log + step * _clamped(median - self._log, log(pace.jump)), log(pace.bound))


class Calibration:
    """The factors of one worker. They live as long as its process: a restarted worker begins at 1."""

    def __init__(self, pace: Pace = DEFAULT_PACE) -> None:
        self._factors = {fn: Factor(pace) for fn in FUNCTIONS}

    def add(self, fn: CostFunction, predicted_s: float, measured_s: float, now: float) -> bool:
        """See Factor.add. `predicted_s` is the profile's, without any factor."""
        return self._factors[fn].add(predicted_s, measured_s, now)

    def factor(self, fn: CostFunction) -> float:
        """What to multiply the profile's time by."""
        own = self._factors[fn]
        if not own.measured and fn in _STANDS_IN:
            own = self._factors[_STANDS_IN[fn]]
        return own.value


def _clamped(value: float, most: float) -> float:
    return max(-most, min(most, value))


def _median(tasks: deque[tuple[float, float]]) -> tuple[float, float]:
    """The weighted median of (value, weight), no weight above `_OTHERS` of the rest of them; and the sum of the weights."""
    total = sum(weight for _, weight in tasks)
    weighed = [(value, min(weight, _OTHERS * (total - weight))) for value, weight in sorted(tasks)]
    total, seen = sum(weight for _, weight in weighed), 0.0
    for value, weight in weighed:
        seen += weight
        if 2 * seen >= total:
            return value, total
    return weighed[-1][0], total
