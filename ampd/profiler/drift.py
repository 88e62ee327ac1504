"""Whether live engines still take the times that a profile says: which points to take again, and what they say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from ampd.profiler.curves import Curve
from ampd.profiler.report import curve_names
from ampd.profiler.spots import Kind, Spot

# The function that a measurement is of, and its direction.
_FUNCTIONS: dict[Kind, tuple[str, str | None]] = {
    "prefill": ("T_pre", None), "decode": ("T_dec", None), "mixed": ("T_mixed", None),
    "history": ("T_kv", "history"), "increment": ("T_kv", "increment"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expected:
    """A point to measure again, and what the profile says: its own point if it has one there (`stored`), else its fit."""

    spot: Spot
    curve: Curve
    seconds: float
    stored: bool


@dataclass(frozen=True, slots=True)
class Drift:
    """Of one function: `ratios` are seconds now over those of the profile, at `points`."""

    curve: Curve
    points: list[Expected]
    ratios: list[float]
    bound: float

    @property
    def ratio(self) -> float:
        """The median."""
        return median(self.ratios)

    @property
    def drifted(self) -> bool:
        """Slower or faster by more than the bound, as factors: 0.25 allows 1 / 1.25 to 1.25."""
        return not 1 / (1 + self.bound) <= self.ratio <= 1 + self.bound

    def as_json(self) -> dict[str, Any]:
        """A row."""
        points = [
            {"spot": e.spot.name, "profile_s": e.seconds, "ratio": r, "against": "point" if e.stored else "fit"}
            for e, r in zip(self.points, self.ratios, strict=True)
        ]
        return {**curve_names(self.curve), "ratio": self.ratio, "bound": self.bound, "drifted": self.drifted, "points": points}


def pick(
    curves: Sequence[Curve], candidates: Iterable[Spot], thetas: Mapping[str, int], count: int, transport: str | None = None
) -> list[Expected]:
    """`count` points of every function that the engines of `thetas` ("prefill", "decode") can be asked for.

    `transport` names the one whose T_kv is meant, of several. The points spread from the quick to the slow ones, and lie where
    the profile has points, or else in its measured range.
    """
    spots = list(dict.fromkeys(candidates))
    picked = []
    for kind in _FUNCTIONS:
        curve = curve_of(curves, kind, thetas, transport)
        if curve is None:
            continue
        known = [e for spot in spots if spot.kind == kind and (e := _expect(spot, curve)) is not None]
        known = [e for e in known if e.stored] or known
        known.sort(key=lambda e: (e.seconds, e.spot))
        count_here = min(count, len(known))
        picked += [known[(2 * i + 1) * len(known) // (2 * count_here)] for i in range(count_here)]
    return picked


def curve_of(curves: Sequence[Curve], kind: Kind, thetas: Mapping[str, int], transport: str | None = None) -> Curve | None:
    """The fit that a measurement of that kind is compared with; T_kv's by the transport, or else the first one."""
    name, direction = _FUNCTIONS[kind]
    p, d = thetas["prefill"], thetas["decode"]
    theta = {"prefill": f"{p}", "history": f"{d}->{p}", "increment": f"{p}->{d}"}.get(kind, f"{d}")
    same = [c for c in curves if (c.name, c.direction, c.theta) == (name, direction, theta)]
    return min(same, key=lambda c: c.transport != transport, default=None)


def _expect(spot: Spot, curve: Curve) -> Expected | None:
    point = spot.point
    if not all(low <= value <= high for value, (low, high) in zip(point, curve.spans.values(), strict=True)):
        return None
    rows = np.flatnonzero((curve.args[:, : len(point)] == point).all(axis=1))
    seconds = float(curve.seconds[rows[0]]) if len(rows) else curve.predict(*point)
    return Expected(spot, curve, seconds, bool(len(rows)))


def drifts(picked: Sequence[Expected], measured: Mapping[Spot, Sequence[float]], bound: float) -> tuple[list[Drift], list[str]]:
    """What came out for each function, and the names of the points that could not be measured."""
    taken: dict[int, list[Expected]] = {}
    for expected in picked:
        if measured.get(expected.spot):
            taken.setdefault(id(expected.curve), []).append(expected)
    found = [Drift(of[0].curve, of, [median(measured[e.spot]) / e.seconds for e in of], bound) for of in taken.values()]
    return found, [e.spot.name for e in picked if not measured.get(e.spot)]
