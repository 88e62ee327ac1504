"""Non-negative least squares (Lawson and Hanson, Solving Least Squares Problems, 1974, chapter 23)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_TOLERANCE = 1e-10
_TINY = 1e-300
_RIDGE = 1e-13  # of normalised columns: keeps equal ones solvable


def nnls(matrix: NDArray[np.float64], target: NDArray[np.float64], start: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """The x >= 0 that minimises |matrix x - target|. Shapes: (rows, columns), (rows,) -> (columns,).

    `start`, a guess >= 0 such as the answer to a similar problem, saves time.
    """
    norms = np.linalg.norm(matrix, axis=0)
    scale = np.where(norms > 0, norms, 1.0)
    # The triangular factor has the same least squares as the matrix, in as few rows as columns.
    factor = np.linalg.qr(np.column_stack([matrix / scale, target])).R
    a, b = factor[:, :-1], factor[:, -1]
    columns = a.shape[1]
    gram, projected = a.T @ a + _RIDGE * np.eye(columns), a.T @ b
    x = np.zeros(columns) if start is None else start * scale
    active = x > 0
    if active.any():
        x = _descend(gram, projected, x, active)
    tolerance = _TOLERANCE * max(1.0, float(np.linalg.norm(target)))
    for _ in range(3 * columns):
        gradient = np.where(active, -np.inf, projected - gram @ x)
        enter = int(np.argmax(gradient))
        if gradient[enter] <= tolerance:
            break
        active[enter] = True
        x = _descend(gram, projected, x, active)
    solution: NDArray[np.float64] = x / scale
    return solution


def _descend(
    gram: NDArray[np.float64], projected: NDArray[np.float64], x: NDArray[np.float64], active: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Least squares over the active columns; those that would turn negative leave (`active` is updated)."""
    while active.any():
        chosen = np.flatnonzero(active)
        best = np.zeros_like(x)
        best[chosen] = np.linalg.solve(gram[np.ix_(chosen, chosen)], projected[chosen])
        if best[chosen].min() > 0:
            return best
        blocked = active & (best <= 0)
        step = float((x[blocked] / np.maximum(x[blocked] - best[blocked], _TINY)).min())
        x = x + step * (best - x)
        leaving = blocked & (x <= max(float(x[blocked].min()), 0.0) + _TINY)
        x[leaving] = 0.0
        active &= ~leaving
    return np.zeros_like(x)
