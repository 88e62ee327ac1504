"""Points of a function that differ only in the argument a plot runs along, and the fitted line through them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ampd.profiler.curves import Curve, Floats

_LINE = 80  # points of a drawn line


@dataclass(frozen=True, slots=True)
class Group:
    """`rows` index the curve's points. `fixed` are the other arguments of its line; a context is that of one sequence."""

    label: str
    rows: NDArray[np.intp]
    fixed: dict[str, float]

    def x(self, curve: Curve) -> NDArray[np.int64]:
        """The argument along which the points are drawn."""
        column: NDArray[np.int64] = curve.args[self.rows, list(curve.spans).index(curve.along)]
        return column

    def line(self, curve: Curve) -> tuple[list[tuple[int, ...]], Floats]:
        """Arguments of the line, and its values of the argument along which it is drawn: from the first point to the last."""
        xs = np.unique(np.geomspace(self.x(curve).min(), self.x(curve).max(), _LINE).round())
        return [self._args(curve, int(x)) for x in xs], xs

    def _args(self, curve: Curve, x: int) -> tuple[int, ...]:
        values = {**self.fixed, curve.along: x}
        if "context" in values:
            values["context"] *= values["batch"]
        return tuple(round(value) for value in values.values())


def group_points(curve: Curve, most: int) -> tuple[list[Group], NDArray[np.intp]]:
    """At most `most` groups, spread over all that there are, and the rows of the points that are in none of them."""
    names = [*curve.spans, "l_hist"][: curve.args.shape[1]]
    columns = {name: curve.args[:, i].astype(np.float64) for i, name in enumerate(names)}
    if "context" in columns:
        columns["context"] = columns["context"] / np.maximum(columns["batch"], 1)
    others = [name for name in names if name != curve.along]
    found: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for row in range(len(curve.seconds)):
        found[tuple(_near(name, columns[name][row]) for name in others)].append(row)
    keys = sorted(found)
    chosen = [keys[i] for i in np.unique(np.linspace(0, len(keys) - 1, min(most, len(keys))).round().astype(int))]
    groups = []
    for key in chosen:
        rows = np.array(found[key])
        fixed = {name: float(np.median(columns[name][rows])) for name in names}
        shown = [f"{_WORDS.get(name, name)} {fixed[name]:,.0f}" for name in others if name != "l_hist" or curve.name == "T_pre"]
        groups.append(Group(", ".join(shown) or "measured", rows, fixed))
    rest = np.setdiff1d(np.arange(len(curve.seconds)), np.concatenate([g.rows for g in groups]) if groups else [])
    return groups, rest.astype(np.intp)


_WORDS = {"context": "context of a sequence"}


def _near(name: str, value: float) -> float:
    """Contexts grow by the tokens that are decoded while they are measured: those within half an octave are one."""
    return round(2 * float(np.log2(max(value, 1.0)))) if name == "context" else value
