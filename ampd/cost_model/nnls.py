"""Non-negative least squares (Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_TOLERANCE = 1e-10


def nnls(matrix: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """The x >= 0 that minimises |matrix x - target|. Shapes: (rows, columns), (rows,) -> (columns,)."""
    norms = np.linalg.norm(matrix, axis=0)
    scale = np.where(norms > 0, norms, 1.0)
    a = matrix / scale
    columns = a.shape[1]
    x = np.zeros(columns)
    active = np.zeros(columns, dtype=bool)
    tolerance = _TOLERANCE * max(1.0, float(np.linalg.norm(target)))
    for _ in range(3 * columns):
        gradient = np.where(active, -np.inf, a.T @ (target - a @ x))
        enter = int(np.argmax(gradient))
        if gradient[enter] <= tolerance:
            break
        active[enter] = True
        x = _descend(a, target, x, active)
    solution: NDArray[np.float64] = x / scale
    return solution


def _descend(
    a: NDArray[np.float64], target: NDArray[np.float64], x: NDArray[np.float64], active: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Least squares over the active columns; those that would turn negative leave (`active` is updated)."""
    while active.any():
        best = np.zeros_like(x)
        best[active] = np.linalg.lstsq(a[:, active], target, rcond=None)[0]
        negative = active & (best <= 0)
        if not negative.any():
            return best
        step = np.min(x[negative] / np.maximum(x[negative] - best[negative], _TOLERANCE))
        x = x + step * (best - x)
        active &= x > _TOLERANCE
        x[~active] = 0.0
    return np.zeros_like(x)
