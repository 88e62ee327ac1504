"""From measured points to cost functions: non-negative least squares over segments, chosen by held-out error.

Residuals are relative, so a 5 ms point counts as much as a 5 s one; large ones are weighted down (Huber), so a stalled measurement
does not bend the fit. Breakpoints come from the measured values, and one more must lower the held-out error to be taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ampd.cost_model.functions import DecodeFit, FitError, PrefillFit, Segment, Span, TransferFit
from ampd.cost_model.meta import Meta
from ampd.cost_model.nnls import nnls
from ampd.cost_model.points import DecodePoint, KvPoint, Points, PrefillPoint
from ampd.cost_model.profile import Profile
from ampd.errors import ProfileError

Floats = NDArray[np.float64]
T = TypeVar("T")
_FOLDS = 5
_CANDIDATES = 7  # breakpoints tried
_MAX_BREAKS = 2
_WORTH = 0.93  # one more breakpoint must lower the held-out error below this share
_MIN_POINTS = 3
_HUBER = 1.5


def fit_t_pre(points: Sequence[PrefillPoint]) -> PrefillFit:
    """Fit T_pre to the points of one theta. Raises ProfileError on too few points or a time that is not positive."""
    x, y, seconds = _columns("T_pre", [(p.l_incr, p.l_hist, p.seconds) for p in points])

    def features(x: Floats, y: Floats, breaks: Sequence[int]) -> Floats:
        ramps = _ramps(x, breaks)
        starts = [0, *breaks]
        pairs = [ramp * (y + start + ramp / 2) for ramp, start in zip(ramps, starts, strict=True)]
        return np.stack([np.ones_like(x), y, *ramps, *pairs], axis=1)

    breaks, fit, error = _fit(x, y, seconds, features)
    n = len(breaks) + 1
    segments = _segments(breaks, fit[2 : 2 + n], fit[2 + n :])
    return PrefillFit(points[0].theta, _round(fit[0]), _round(fit[1]), segments, _span(y), _span(x), error)


def fit_t_dec(points: Sequence[DecodePoint]) -> DecodeFit:
    """Fit T_dec to the points of one theta. Raises like `fit_t_pre`."""
    x, y, seconds = _columns("T_dec", [(p.batch, p.context, p.seconds) for p in points])
    breaks, fit, error = _fit(x, y, seconds, lambda x, y, breaks: np.stack([np.ones_like(x), y, *_ramps(x, breaks)], axis=1))
    return DecodeFit(points[0].theta, _round(fit[0]), _round(fit[1]), _segments(breaks, fit[2:]), _span(x), _span(y), error)


def fit_t_kv(points: Sequence[KvPoint]) -> TransferFit:
    """Fit T_kv to the points of one pair of thetas and one direction. Raises like `fit_t_pre`."""
    x, y, seconds = _columns("T_kv", [(p.tokens, 0, p.seconds) for p in points])
    breaks, fit, error = _fit(x, y, seconds, lambda x, _, breaks: np.stack([np.ones_like(x), *_ramps(x, breaks)], axis=1))
    first = points[0]
    segments = _segments(breaks, fit[1:])
    return TransferFit(first.theta_src, first.theta_dst, first.direction, _round(fit[0]), segments, _span(x), error)


def fit_profile(meta: Meta, points: Points) -> Profile:
    """Fit every function for every theta among the points. Raises ProfileError naming the function that lacks points."""
    prefill, decode, kv = points.prefill, points.decode, points.kv
    for name, found in (("T_pre", prefill), ("T_dec", decode)):
        if not found:
            raise ProfileError(f"{name}: no point was measured")
    return Profile(
        meta=meta,
        t_pre=[fit_t_pre([p for p in prefill if p.theta == theta]) for theta in _keys(p.theta for p in prefill)],
        t_dec=[fit_t_dec([p for p in decode if p.theta == theta]) for theta in _keys(p.theta for p in decode)],
        t_kv=[
            fit_t_kv([p for p in kv if (p.theta_src, p.theta_dst, p.direction) == key])
            for key in _keys((p.theta_src, p.theta_dst, p.direction) for p in kv)
        ],
        points=points,
    )


Features = Callable[[Floats, Floats, Sequence[int]], Floats]


def _fit(x: Floats, y: Floats, seconds: Floats, features: Features) -> tuple[list[int], Floats, FitError]:
    """Breakpoints, coefficients and held-out error."""
    folds = _folds(x, y)
    inner = np.unique(x)[1:-1]
    chosen = np.unique(np.quantile(inner, np.linspace(0, 1, _CANDIDATES), method="nearest")) if len(inner) else inner
    best: list[int] = []
    best_errors = _heldout(features(x, y, best), seconds, folds)
    for count in range(1, _MAX_BREAKS + 1):
        tried = [
            (list(map(int, c)), _heldout(features(x, y, list(map(int, c))), seconds, folds)) for c in combinations(chosen, count)
        ]
        if not tried:
            break
        breaks, errors = min(tried, key=lambda t: _score(t[1]))
        if _score(errors) >= _WORTH * _score(best_errors):
            break
        best, best_errors = breaks, errors
    error = FitError(_round(np.median(best_errors)), _round(np.quantile(best_errors, 0.95)), len(x))
    return best, _solve(features(x, y, best), seconds), error


def _solve(matrix: Floats, seconds: Floats) -> Floats:
    """Non-negative coefficients with the least Huber loss of the relative residuals, by reweighting."""
    weights = np.ones_like(seconds)
    for _ in range(4):
        scaled = weights / seconds
        fit = nnls(matrix * scaled[:, None], scaled * seconds)
        residuals = np.abs(matrix @ fit / seconds - 1)
        spread = max(1.4826 * float(np.median(residuals)), 1e-9)
        weights = np.sqrt(np.minimum(1.0, _HUBER * spread / np.maximum(residuals, 1e-12)))
    return fit


def _heldout(matrix: Floats, seconds: Floats, folds: NDArray[np.int64]) -> Floats:
    """Relative error of every point under the fit of the folds that it is not in."""
    errors = np.empty_like(seconds)
    for fold in np.unique(folds):
        out = folds == fold
        fit = _solve(matrix[~out], seconds[~out])
        errors[out] = np.abs(matrix[out] @ fit / seconds[out] - 1)
    return errors


def _score(errors: Floats) -> float:
    """Mean held-out error; a single wild point counts as at most 100 %."""
    return float(np.minimum(errors, 1.0).mean()) + 1e-6


def _folds(x: Floats, y: Floats) -> NDArray[np.int64]:
    """A fold for each point; repeats of the same arguments share theirs."""
    _, group = np.unique(np.stack([x, y], axis=1), axis=0, return_inverse=True)
    order = np.random.default_rng(0).permutation(int(group.max()) + 1)
    folds: NDArray[np.int64] = order[group.ravel()] % _FOLDS
    return folds


def _columns(name: str, rows: Iterable[tuple[int, int, float]]) -> tuple[Floats, Floats, Floats]:
    table = np.array(list(rows), dtype=np.float64).reshape(-1, 3)
    distinct = len(np.unique(table[:, :2], axis=0))
    if distinct < _MIN_POINTS:
        raise ProfileError(f"{name}: {distinct} different points were measured, at least {_MIN_POINTS} are needed")
    if not np.isfinite(table).all() or table[:, 2].min() <= 0:
        raise ProfileError(f"{name}: a measured time is not a positive number")
    return table[:, 0], table[:, 1], table[:, 2]


def _ramps(x: Floats, breaks: Sequence[int]) -> list[Floats]:
    """How far x reaches into each segment."""
    edges = [0.0, *breaks, np.inf]
    return [np.clip(x, a, b) - a for a, b in pairwise(edges)]


def _segments(breaks: Sequence[int], each: Floats, pair: Floats | None = None) -> list[Segment]:
    pairs = np.zeros_like(each) if pair is None else pair
    return [Segment(end, _round(e), _round(p)) for end, e, p in zip([*breaks, None], each, pairs, strict=True)]


def _keys(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))


def _span(values: Floats) -> Span:
    return int(values.min()), int(values.max())


def _round(value: float | np.floating) -> float:
    """Six significant digits: what a person can read and a measurement can carry."""
    return float(f"{float(value):.6g}")
