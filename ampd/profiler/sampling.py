"""Take samples of points until each point's median is stable.

A round visits every point that is not stable yet, once, in an order of its own: a slow minute of the machine spreads over all
points instead of bending one curve, and no point is always measured after the same other.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ampd.profiler.spots import Spot

# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20)
_T95_MORE = 2.1
_MAD_TO_SIGMA = 1.2533  # mean absolute deviation of a normal distribution to its sigma
_MEDIAN_LOSS = 1.2533  # standard error of a median over that of a mean
_SPOILT = 8  # samples of a point that may be spoilt, for each one that is wanted


@dataclass(frozen=True, slots=True)
class Plan:
    """How often: a point is done with `least` samples once its median is known to `tolerance`, or with `most`.

    After `budget_s` seconds only points without any sample are visited. Before a sample a slow engine is given `patience_s` to be
    fast again; a sample that ends with a slow one is taken again, but of a point not more than `redo` times.
    """

    least: int
    most: int
    tolerance: float
    budget_s: float = float("inf")
    patience_s: float = 3.0
    redo: int = 24

    def done(self, samples: Sequence[float]) -> bool:
        """Whether a point needs no more samples."""
        return len(samples) >= self.most or (len(samples) >= self.least and spread(samples) <= self.tolerance)


QUICK_PLAN = Plan(least=2, most=4, tolerance=0.15, budget_s=60.0, patience_s=0.3, redo=1)
FULL_PLAN = Plan(least=3, most=8, tolerance=0.05)
CHECK_PLAN = Plan(least=3, most=6, tolerance=0.1, patience_s=1.0, redo=3)

Measure = Callable[[Spot], Awaitable[float | None]]
Record = Callable[[Spot, float], None]
Progress = Callable[[int, int, str], None]  # points done, points in all, what is measured now


def spread(samples: Sequence[float]) -> float:
    """Relative half-width of the 95 % interval of the median; infinite for one sample.

    From the mean absolute deviation, which sees a single stray among few samples where quartiles would not: such a point is
    measured again until the stray is outvoted.
    """
    count = len(samples)
    if count < 2:
        return float("inf")
    mid = median(samples)
    sigma = _MAD_TO_SIGMA * sum(abs(s - mid) for s in samples) / (count - 1)
    factor = _T95[count - 2] if count - 2 < len(_T95) else _T95_MORE
    return factor * _MEDIAN_LOSS * sigma / math.sqrt(count) / mid


async def sample(
    measure: Measure,
    spots: Sequence[Spot],
    plan: Plan,
    *,
    have: Mapping[Spot, Sequence[float]] | None = None,
    record: Record = lambda spot, seconds: None,
    progress: Progress = lambda done, total, what: None,
    clock: Callable[[], float] = time.monotonic,
    seed: int = 0,
) -> dict[Spot, list[float]]:
    """Seconds of every sample of every spot, those in `have` included, which are not taken again.

    `measure` gives a sample, or None for one that was spoilt and has to be taken again; `record` hears of each good one at once.
    A point that is spoilt time and again ends with what it has, perhaps nothing.
    """
    samples = {spot: list((have or {}).get(spot, ())) for spot in spots}
    spoilt = dict.fromkeys(spots, 0)
    ends_at = clock() + plan.budget_s
    round_number = 0

    def open_spots(spots: Iterable[Spot]) -> list[Spot]:
        most = 1 if clock() >= ends_at else plan.most
        return [s for s in spots if len(samples[s]) < most and not plan.done(samples[s]) and spoilt[s] < _SPOILT * plan.least]

    while todo := open_spots(spots):
        order = random.Random(f"{seed}/{round_number}").sample(todo, len(todo))
        for spot in order:
            if not open_spots([spot]):
                continue
            progress(len(spots) - len(open_spots(spots)), len(spots), spot.name)
            seconds = await measure(spot)
            if seconds is None:
                spoilt[spot] += 1
                continue
            samples[spot].append(seconds)
            record(spot, seconds)
        round_number += 1
    progress(len(spots), len(spots), "done")
    return samples
