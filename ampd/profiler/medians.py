"""From samples to the points of a profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from ampd.cost_model import DecodePoint, KvPoint, MixedPoint, Points, PrefillPoint
from ampd.policy.types import Direction
from ampd.profiler.sampling import spread
from ampd.profiler.spots import Spot


def points_of(samples: Mapping[Spot, Sequence[float]], theta_p: int, theta_d: int) -> Points:
    """The medians, by function and argument. Thetas are those of the prefill and of the decode engine."""
    points = Points()
    for spot, seconds in sorted(samples.items()):
        if seconds:
            _add(points, spot, seconds, theta_p, theta_d)
    return points


def _add(points: Points, spot: Spot, seconds: Sequence[float], theta_p: int, theta_d: int) -> None:
    mid = round(median(seconds), 6)  # more digits would be noise
    count, width = len(seconds), round(spread(seconds), 4) if len(seconds) > 1 else 0.0
    match spot.kind:
        case "prefill":
            hist, incr = spot.point
            points.prefill.append(PrefillPoint(hist, incr, mid, theta_p, count, width))
        case "decode":
            batch, context = spot.point
            points.decode.append(DecodePoint(batch, context, mid, theta_d, count, width))
        case "mixed":
            batch, context, chunk = spot.point
            points.mixed.append(MixedPoint(batch, context, chunk, mid, theta_d, samples=count, spread=width))
        case "history":
            points.kv.append(_read(spot, "history", mid, theta_d, theta_p, count, width))
        case "increment":
            points.kv.append(_read(spot, "increment", mid, theta_p, theta_d, count, width))


def _read(spot: Spot, direction: Direction, seconds: float, source: int, reader: int, count: int, width: float) -> KvPoint:
    return KvPoint(spot.point[0], direction, seconds, source, reader, samples=count, spread=width)
