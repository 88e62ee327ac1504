"""Non-negative fits of piecewise functions: breakpoints chosen by held-out error, outliers weighted down, errors honest.

Residuals are relative, so a 5 ms point counts as much as a 5 s one; large ones are weighted down (Huber), so a stalled measurement
does not bend the fit. Breakpoints come from the measured values. They are added one at a time, each time the one that lowers the
held-out error most, until none lowers it enough. The stated error is that of a cross-validation around all of this: points count
that had a say neither in the coefficients nor in the choice of breakpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ampd.cost_model.nnls import nnls

Floats = NDArray[np.float64]
Features = Callable[[Floats, Sequence[int]], Floats]

_FOLDS = 5
_CANDIDATES = 12  # breakpoints tried
_MAX_BREAKS = 5
_WORTH = 0.95  # one more breakpoint must lower the held-out error below this share
_ROUNDS = 5  # of reweighting
_QUICK_ROUNDS = 2  # while breakpoints are compared
_GOOD = 1e-3  # no breakpoint is sought for a held-out error below this
_HUBER = 1.5
_TRUST = 0.05  # relative spread at which a point's weight begins to fall


@dataclass(frozen=True, slots=True)
class Sample:
    """Measured points: `args` of shape (points, arguments), the rest (points,).

    A time is predicted as `offset_s`, which is known, plus the fitted function where that is more than `floor_s`.
    """

    args: Floats
    seconds: Floats
    spread: Floats
    offset_s: Floats
    floor_s: Floats

    def take(self, rows: NDArray[np.bool_]) -> Sample:
        """Some of them."""
        return Sample(self.args[rows], self.seconds[rows], self.spread[rows], self.offset_s[rows], self.floor_s[rows])


@dataclass(frozen=True, slots=True)
class Found:
    """A fit: breakpoints, coefficients, and every point's relative error under a fit that has not seen it, shape (points,)."""

    breaks: list[int]
    coefficients: Floats
    heldout: Floats


def search(sample: Sample, column: int, features: Features) -> Found:
    """Fit a function whose pieces divide the argument in `column`. `features(args, breaks)` is the matrix of its terms."""
    breaks = _choose(sample, column, features)
    heldout = np.empty_like(sample.seconds)
    folds = _folds(sample.args)
    for fold in np.unique(folds):
        out = folds == fold
        seen = sample.take(~out)
        chosen = _choose(seen, column, features)
        heldout[out] = _errors(sample.take(out), features, chosen, _solve(seen, features(seen.args, chosen)))
    return Found(breaks, _solve(sample, features(sample.args, breaks)), heldout)


def _choose(sample: Sample, column: int, features: Features) -> list[int]:
    """Breakpoints."""
    inner = np.unique(sample.args[:, column])[1:-1]
    tried_at = np.quantile(inner, np.linspace(0, 1, _CANDIDATES), method="nearest") if len(inner) else inner
    candidates = {int(x) for x in tried_at}
    folds = _folds(sample.args)
    parts = [(sample.take(folds != fold), sample.take(folds == fold)) for fold in np.unique(folds)]

    def score(breaks: list[int]) -> float:
        """Mean held-out error; a single wild point counts as at most 100 %."""
        errors = [_errors(out, features, breaks, _solve(seen, features(seen.args, breaks), _QUICK_ROUNDS)) for seen, out in parts]
        return float(np.minimum(np.concatenate(errors), 1.0).mean())

    best: list[int] = []
    best_score = score(best)
    while best_score > _GOOD and len(best) < _MAX_BREAKS and candidates - set(best):
        tried = [(score(breaks), breaks) for c in candidates - set(best) for breaks in [sorted([*best, c])]]
        least, breaks = min(tried)
        if least >= _WORTH * best_score:
            break
        best, best_score = breaks, least
    return best


def _solve(sample: Sample, matrix: Floats, rounds: int = _ROUNDS) -> Floats:
    """Non-negative coefficients with the least Huber loss of the relative residuals, by reweighting."""
    trust = _TRUST / np.hypot(_TRUST, sample.spread)
    weights, fit = trust, np.zeros(matrix.shape[1])
    for _ in range(rounds):
        scaled = weights / sample.seconds
        fit = nnls(matrix * scaled[:, None], scaled * (sample.seconds - sample.offset_s), fit)
        residuals = np.abs((matrix @ fit + sample.offset_s) / sample.seconds - 1)
        spread = max(1.4826 * float(np.median(residuals)), 1e-9)
        weights = trust * np.sqrt(np.minimum(1.0, _HUBER * spread / np.maximum(residuals, 1e-12)))
    return fit


def _errors(sample: Sample, features: Features, breaks: Sequence[int], fit: Floats) -> Floats:
    predicted = np.maximum(features(sample.args, breaks) @ fit, sample.floor_s) + sample.offset_s
    errors: Floats = np.abs(predicted / sample.seconds - 1)
    return errors


def _folds(args: Floats) -> NDArray[np.int64]:
    """A fold for each point; repeats of the same arguments share theirs."""
    _, group = np.unique(args, axis=0, return_inverse=True)
    order = np.random.default_rng(0).permutation(int(group.max()) + 1)
    folds: NDArray[np.int64] = order[group.ravel()] % _FOLDS
    return folds
