"""The cost functions for arrays: what planning and simulation evaluate by the million."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ampd.cost_model.keys import nearest_theta, nearest_way
from ampd.cost_model.pieces import Compiled, decode_pieces, mixed_pieces, prefill_pieces, transfer_pieces
from ampd.cost_model.piecewise import PiecewiseCostModel
from ampd.policy.types import Direction

Floats = NDArray[np.float64]
_Table = tuple[NDArray[np.int64], Floats]  # breakpoints, and pieces of shape (coefficients, breakpoints + 1)


class ArrayCostModel:
    """The functions of a PiecewiseCostModel, equal in every value and error, over whole numbers in arrays that broadcast."""

    def __init__(self, cost: PiecewiseCostModel) -> None:
        self._cost = cost
        self._pre = {k: _table(prefill_pieces(f)) for k, f in cost.prefill.items()}
        self._dec = {k: _table(decode_pieces(f)) for k, f in cost.decode.items()}
        self._mix = {k: (_table(mixed_pieces(f)), f.sequence_s) for k, f in cost.mixed.items()}
        self._kv = {k: (_table(transfer_pieces(f)), f.block_s, f.block_size) for k, f in cost.ways.items()}

    def t_pre(self, l_hist: ArrayLike, l_incr: ArrayLike, theta: int) -> Floats:
        """See PiecewiseCostModel."""
        if theta not in self._pre:
            theta = nearest_theta("T_pre", theta, self._pre, allowed=self._cost.foreign)
        history, tokens = np.broadcast_arrays(l_hist, l_incr)
        const, second, each, pair, square = _pieces(self._pre[theta], tokens)
        return np.where(tokens > 0, const + second * history + tokens * (each + pair * history + square * tokens), 0.0)

    def t_dec(self, batch: ArrayLike, context: ArrayLike, theta: int) -> Floats:
        """See PiecewiseCostModel."""
        if theta not in self._dec:
            theta = nearest_theta("T_dec", theta, self._dec, allowed=self._cost.foreign)
        sequences, held = np.broadcast_arrays(batch, context)
        const, second, each, pair, _ = _pieces(self._dec[theta], sequences)
        return np.where(sequences > 0, const + second * held + sequences * (each + pair * held), 0.0)

    def t_mixed(self, batch: ArrayLike, context: ArrayLike, chunk: ArrayLike, theta: int) -> Floats:
        """See PiecewiseCostModel."""
        sequences, held, tokens = np.broadcast_arrays(batch, context, chunk)
        decode = self.t_dec(sequences, held, theta)
        if theta not in self._mix:
            if not (self._cost.foreign and self._mix):
                return decode + self.t_pre(0, tokens, theta)
            theta = nearest_theta("T_mixed", theta, self._mix, allowed=True)
        table, sequence = self._mix[theta]
        const, second, each, _, square = _pieces(table, tokens)
        mixed = const + second * held + sequence * sequences + tokens * (each + square * tokens)
        both = np.where(tokens > 0, np.maximum(mixed, decode), decode)
        alone = (sequences <= 0) & (tokens > 0)
        return np.where(alone, self.t_pre(0, tokens, theta), both) if alone.any() else both

    def t_kv(self, tokens: ArrayLike, theta_src: int, theta_dst: int, direction: Direction, transport: str | None = None) -> Floats:
        """See PiecewiseCostModel."""
        way = theta_src, theta_dst, direction, transport
        if way not in self._kv:
            way = nearest_way(way, self._kv, allowed=self._cost.foreign)
        table, block_s, block_size = self._kv[way]
        count = np.asarray(tokens)
        const, _, each, _, _ = _pieces(table, count)
        return np.where(count > 0, const + count * each + block_s * -(-count // block_size), 0.0)


def _table(compiled: Compiled) -> _Table:
    breaks, pieces = compiled
    return np.array(breaks, dtype=np.int64), np.array(pieces).T.copy()


def _pieces(table: _Table, x: NDArray[np.generic]) -> Floats:
    """The coefficients for each x, shape (coefficients, *x.shape)."""
    breaks, pieces = table
    taken: Floats = pieces[:, np.searchsorted(breaks, x, side="left")]
    return taken
