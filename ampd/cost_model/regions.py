"""A fit's error by region of its arguments."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from ampd.cost_model.functions import RegionError, Span

_PARTS = 3


def region_errors(args: NDArray[np.int64], errors: NDArray[np.float64], names: tuple[str, ...]) -> list[RegionError]:
    """Error of each part of the measured range that has points. Each argument's values are divided into up to three parts.

    Shapes: `args` (points, arguments), `errors` (points,); `names` of the arguments.
    """
    spans = [_parts(args[:, n]) for n in range(len(names))]
    found = []
    for region in product(*spans):
        low, high = np.array(region).T
        inside = ((args >= low) & (args <= high)).all(axis=1)
        if not inside.any():
            continue
        median, p95 = (float(f"{e:.4g}") for e in np.quantile(errors[inside], (0.5, 0.95)))
        found.append(RegionError(dict(zip(names, region, strict=True)), median, p95, int(inside.sum())))
    return found


def _parts(values: NDArray[np.int64]) -> list[Span]:
    """Ranges with about as many of the different values each, without gaps between them that hold a value."""
    return [(int(part[0]), int(part[-1])) for part in np.array_split(np.unique(values), _PARTS) if len(part)]
