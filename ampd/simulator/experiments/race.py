"""The best deployment of a policy: all candidates run at a rate, those that sustain it go on at a higher one.

The same effort for every policy: as many candidates, rungs and rounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from ampd.simulator.experiments.goodput import ATTAINED, Bench, Length, Trial

_UP = 9  # rungs of 3 %: a rate 1.3 times as high
_DOWN = 18  # 0.58 times
_WORSE = 0.05  # of attainment below the best, at a rate that none sustains: out


@dataclass(frozen=True, slots=True)
class Winner:
    """The name of the best candidate, and the lowest rung (highest rate) at which it was seen to sustain, or else to fail."""

    name: str
    rung: int


def race(benches: Mapping[str, Bench], start: int, length: Length, heats: int = 6, floor: int = 150) -> Winner:
    """Successive halving from rung `start`.

    Of several that sustain a rate, all go on 1.3 times as fast, or at the middle rung once a rate is known that none sustains. As
    long as none has sustained any, the better half and what comes near the best go on at 0.58 times the rate: how they fail far
    above what they can carry says little of them. Equals are ranked by attainment, and then in the order given.
    """
    alive = list(benches)
    rung = min(max(start, 1), floor)
    good, bad = 0, 0  # rungs that all of `alive` have sustained, and that none has; 0: none known
    nearest = alive
    for _ in range(heats):
        trials = {name: benches[name].at(rung, length) for name in alive}
        nearest = sorted(alive, key=lambda name: -merit(trials[name]))
        passed = [name for name in nearest if trials[name].sustained]
        if passed:
            alive, good = passed, rung
        else:
            bad = rung
            if not good:
                alive = _near(nearest, trials)
        if len(alive) == 1 and (good or rung >= floor):
            break
        following = _next_rung(good, bad, floor)
        if following == rung:
            break
        rung = following
    return Winner(nearest[0], good or rung)


def _next_rung(good: int, bad: int, floor: int) -> int:
    if not good:
        return min(floor, bad + _DOWN)
    return (good + bad) // 2 if bad else max(1, good - _UP)


def _near(nearest: Sequence[str], trials: Mapping[str, Trial]) -> list[str]:
    """The better half, and what is hardly worse than the best."""
    least, half = merit(trials[nearest[0]]) - _WORSE, ceil(len(nearest) / 2)
    return [name for i, name in enumerate(nearest) if i < half or merit(trials[name]) >= least]


def merit(trial: Trial) -> float:
    """By attainment; a run that was not steady, or starved rounds, comes after all that were not."""
    attainment = trial.measured.attainment if trial.measured.rounds else 0.0
    return attainment + (1.0 if trial.sustained else 0.0) - (0.0 if trial.steady else 1.0) * (1 - ATTAINED)
