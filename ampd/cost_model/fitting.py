"""From measured points to cost functions: which terms each function has, and its statement of error."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from ampd.cost_model.functions import DecodeFit, FitError, MixedFit, PrefillFit, Segment, Span, TransferFit
from ampd.cost_model.meta import Meta
from ampd.cost_model.piecewise import PiecewiseCostModel
from ampd.cost_model.points import DecodePoint, KvPoint, MixedPoint, Points, PrefillPoint
from ampd.cost_model.profile import Profile
from ampd.cost_model.regions import region_errors
from ampd.cost_model.search import Floats, Found, Sample, search
from ampd.errors import ProfileError

K = TypeVar("K")
T = TypeVar("T")
_MIN_POINTS = 3


def fit_t_pre(points: Sequence[PrefillPoint]) -> PrefillFit:
    """Fit T_pre to the points of one theta. Raises ProfileError on too few points or a time that is not positive."""
    sample = _sample("T_pre", [(p.l_hist, p.l_incr) for p in points], points)

    def features(args: Floats, breaks: Sequence[int]) -> Floats:
        history, tokens = args.T
        return np.stack([np.ones_like(tokens), history, *_ramps(tokens, breaks), *_pairs(tokens, breaks, history)], axis=1)

    found = search(sample, 1, features)
    start, history, *rates = found.coefficients
    return PrefillFit(
        theta=points[0].theta,
        start_s=_round(start),
        history_token_s=_round(history),
        segments=_segments(found.breaks, rates),
        l_hist=_span(sample.args[:, 0]),
        l_incr=_span(sample.args[:, 1]),
        error=_error(sample, found, ("l_hist", "l_incr")),
    )


def fit_t_dec(points: Sequence[DecodePoint]) -> DecodeFit:
    """Fit T_dec to the points of one theta. Raises like `fit_t_pre`."""
    sample = _sample("T_dec", [(p.batch, p.context) for p in points], points)

    def features(args: Floats, breaks: Sequence[int]) -> Floats:
        batch, context = args.T
        ramps = _ramps(batch, breaks)
        return np.stack([np.ones_like(batch), context, *ramps, *(ramp * context for ramp in ramps)], axis=1)

    found = search(sample, 0, features)
    start, context, *rates = found.coefficients
    return DecodeFit(
        theta=points[0].theta,
        start_s=_round(start),
        context_token_s=_round(context),
        segments=_segments(found.breaks, rates),
        batch=_span(sample.args[:, 0]),
        context=_span(sample.args[:, 1]),
        error=_error(sample, found, ("batch", "context")),
        sequence=_per_sequence(sample.args),
    )


def fit_t_mixed(points: Sequence[MixedPoint], prefill: PrefillFit | None = None, decode: DecodeFit | None = None) -> MixedFit:
    """Fit T_mixed to the points of one theta. Raises like `fit_t_pre`.

    What a chunk's own history adds is taken from `prefill`, which only points with history need. `decode` is T_dec, than which
    T_mixed is never less.
    """
    cost, theta = PiecewiseCostModel([prefill] if prefill else [], [decode] if decode else [], []), points[0].theta
    history = [cost.t_pre(p.l_hist, p.chunk, theta) - cost.t_pre(0, p.chunk, theta) if p.l_hist else 0.0 for p in points]
    sample = _sample("T_mixed", [(p.batch, p.context, p.chunk) for p in points], points, history)
    if decode is not None:
        sample = replace(sample, floor_s=np.array([cost.t_dec(p.batch, p.context, theta) for p in points]))

    def features(args: Floats, breaks: Sequence[int]) -> Floats:
        batch, context, chunk = args.T
        own = _pairs(chunk, breaks, np.zeros_like(chunk))
        return np.stack([np.ones_like(chunk), batch, context, *_ramps(chunk, breaks), *own], axis=1)

    found = search(sample, 2, features)
    start, batch, context, *rates = found.coefficients
    return MixedFit(
        theta=theta,
        start_s=_round(start),
        sequence_s=_round(batch),
        context_token_s=_round(context),
        segments=_segments(found.breaks, rates),
        batch=_span(sample.args[:, 0]),
        context=_span(sample.args[:, 1]),
        chunk=_span(sample.args[:, 2]),
        error=_error(sample, found, ("batch", "context", "chunk")),
        sequence=_per_sequence(sample.args),
    )


def fit_t_kv(points: Sequence[KvPoint], block_size: int = 1) -> TransferFit:
    """Fit T_kv to the points of one pair of thetas, one direction and one transport. Raises like `fit_t_pre`.

    Where all points are of whole blocks, what a block costs and what its tokens cost cannot be told apart: it is the block's.
    """
    sample = _sample("T_kv", [(p.tokens,) for p in points], points)

    def features(args: Floats, breaks: Sequence[int]) -> Floats:
        tokens = args[:, 0]
        blocks = np.ceil(tokens / block_size) if block_size > 1 else np.zeros_like(tokens)
        return np.stack([np.ones_like(tokens), blocks, *_ramps(tokens, breaks)], axis=1)

    found, first = search(sample, 0, features), points[0]
    start, block, *each = found.coefficients
    return TransferFit(
        theta_src=first.theta_src,
        theta_dst=first.theta_dst,
        direction=first.direction,
        start_s=_round(start),
        segments=_segments(found.breaks, [*each, *(0.0 for _ in each)]),
        tokens=_span(sample.args[:, 0]),
        error=_error(sample, found, ("tokens",)),
        block_s=_round(block),
        block_size=block_size,
        transport=first.transport,
    )


def fit_profile(meta: Meta, points: Points) -> Profile:
    """Fit every function for every theta, direction and transport among the points. Without mixed points T_mixed is left out.

    Raises ProfileError naming the function that lacks points.
    """
    for name, found in (("T_pre", points.prefill), ("T_dec", points.decode)):
        if not found:
            raise ProfileError(f"{name}: no point was measured")
    prefill = {theta: fit_t_pre(of) for theta, of in _grouped((p.theta, p) for p in points.prefill).items()}
    decode = {theta: fit_t_dec(of) for theta, of in _grouped((p.theta, p) for p in points.decode).items()}
    mixed = _grouped((p.theta, p) for p in points.mixed)
    if missing := sorted(mixed.keys() - decode.keys()):
        raise ProfileError(f"T_dec: no point was measured for theta {missing[0]}, which has points of T_mixed")
    ways = _grouped(((p.theta_src, p.theta_dst, p.direction, p.transport), p) for p in points.kv)
    return Profile(
        meta=meta,
        t_pre=list(prefill.values()),
        t_dec=list(decode.values()),
        t_mixed=[fit_t_mixed(of, prefill.get(theta), decode[theta]) for theta, of in mixed.items()],
        t_kv=[fit_t_kv(of, meta.block_size) for of in ways.values()],
        points=points,
    )


def _sample(
    name: str,
    args: Sequence[tuple[int, ...]],
    points: Sequence[PrefillPoint | DecodePoint | MixedPoint | KvPoint],
    offsets: Sequence[float] | None = None,
) -> Sample:
    distinct = len(set(args))
    if distinct < _MIN_POINTS:
        raise ProfileError(f"{name}: {distinct} different points were measured, at least {_MIN_POINTS} are needed")
    seconds = np.array([p.seconds for p in points], dtype=np.float64)
    if not np.isfinite(seconds).all() or seconds.min() <= 0:
        raise ProfileError(f"{name}: a measured time is not a positive number")
    spread = np.array([p.spread for p in points], dtype=np.float64)
    offset = np.zeros_like(seconds) if offsets is None else np.array(offsets, dtype=np.float64)
    return Sample(np.array(args, dtype=np.float64), seconds, spread, offset, np.zeros_like(seconds))


def _ramps(x: Floats, breaks: Sequence[int]) -> list[Floats]:
    """How far x reaches into each segment."""
    edges = [0.0, *breaks, np.inf]
    return [np.clip(x, a, b) - a for a, b in pairwise(edges)]


def _pairs(x: Floats, breaks: Sequence[int], history: Floats) -> list[Floats]:
    """Pairs, in each segment, of a new token and one that it attends to: the history and the new ones before it."""
    return [ramp * (history + start + ramp / 2) for ramp, start in zip(_ramps(x, breaks), [0, *breaks], strict=True)]


def _segments(breaks: Sequence[int], rates: Sequence[float]) -> list[Segment]:
    """`rates`: those of single units for all segments, then those of pairs."""
    each, pair = rates[: len(breaks) + 1], rates[len(breaks) + 1 :]
    return [Segment(end, _round(e), _round(p)) for end, e, p in zip([*breaks, None], each, pair, strict=True)]


def _error(sample: Sample, found: Found, names: tuple[str, ...]) -> FitError:
    median, p95 = np.quantile(found.heldout, (0.5, 0.95))
    regions = region_errors(sample.args.astype(np.int64), found.heldout, names)
    return FitError(_round(median), _round(p95), len(found.heldout), regions)


def _per_sequence(args: Floats) -> Span:
    each = args[:, 1] / args[:, 0]
    return int(np.floor(each.min())), int(np.ceil(each.max()))


def _grouped(rows: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = {}
    for key, row in rows:
        groups.setdefault(key, []).append(row)
    return groups


def _span(values: Floats) -> Span:
    return int(values.min()), int(values.max())


def _round(value: float | np.floating) -> float:
    """Six significant digits: what a person can read and a measurement can carry."""
    return float(f"{float(value):.6g}")
