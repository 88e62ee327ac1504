"""95 % confidence intervals.

Between seeds, Student's t: seeds are independent and their means nearly normal. Within one run, a bootstrap over whole sessions:
the rounds of a session share its luck, so rounds are no independent samples. Sessions that meet in a queue share luck too; what
the bootstrap says of a loaded run is therefore the least uncertainty, and several seeds say more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ampd.simulator.types import Floats, Ints

# t's 97.5 % quantiles for 1 to 10 degrees of freedom; beyond, the expansion below is right to 0.0002.
_QUANTILES = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
_Z = 1.959964


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and where it lies with 95 % confidence; `low` and `high` are NaN when nothing can be said."""

    mean: float
    low: float
    high: float


def t_quantile(degrees: int) -> float:
    """Student's t at 97.5 %. Beyond 10 degrees of freedom by the Cornish-Fisher expansion (Abramowitz and Stegun 26.7.5)."""
    if degrees < 1:
        return math.nan
    if degrees <= len(_QUANTILES):
        return _QUANTILES[degrees - 1]
    first = (_Z**3 + _Z) / 4
    second = (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96
    third = (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / 384
    return _Z + first / degrees + second / degrees**2 + third / degrees**3


def student(values: Sequence[float], least: float = -math.inf, most: float = math.inf) -> Interval:
    """Of independent values, one a seed; NaNs are left out, and the interval is cut to [least, most]. One value has no interval."""
    known = np.array([v for v in values if not math.isnan(v)])
    if not len(known):
        return Interval(math.nan, math.nan, math.nan)
    mean = float(known.mean())
    if len(known) < 2:
        return Interval(mean, math.nan, math.nan)
    half = t_quantile(len(known) - 1) * float(known.std(ddof=1)) / math.sqrt(len(known))
    return Interval(mean, max(least, mean - half), min(most, mean + half))


def bootstrap_share(hits: Ints, totals: Ints, seed: int = 0, draws: int = 1000) -> Interval:
    """Of the share sum(hits) / sum(totals) over sessions, each with its hits of its total; whole sessions are drawn."""
    number = len(totals)
    total = int(totals.sum())
    if total == 0:
        return Interval(math.nan, math.nan, math.nan)
    mean = float(hits.sum()) / total
    if number < 2:
        return Interval(mean, math.nan, math.nan)
    rng = np.random.default_rng(seed)
    shares: Floats = np.empty(draws)
    for i in range(draws):
        drawn = np.bincount(rng.integers(number, size=number), minlength=number)
        shares[i] = float(hits @ drawn) / max(1.0, float(totals @ drawn))
    low, high = np.quantile(shares, (0.025, 0.975))
    return Interval(mean, float(low), float(high))
