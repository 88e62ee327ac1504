"""The cost model of a measured engine: fast lookups in fitted functions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import TypeVar

from ampd.cost_model.functions import DecodeFit, Piece, PrefillFit, Span, TransferFit, compile_pieces
from ampd.errors import ProfileError
from ampd.policy.types import Direction

K = TypeVar("K")
F = TypeVar("F")
_Compiled = tuple[tuple[int, ...], tuple[Piece, ...]]


class PiecewiseCostModel:
    """A `policy.types.CostModel` over fits, keyed by theta. Every method raises ProfileError for a theta that has no fit.

    Outside the measured range a function is extrapolated by its outer segment; `knows_*` tell whether arguments are inside it.
    """

    def __init__(self, prefill: Iterable[PrefillFit], decode: Iterable[DecodeFit], transfer: Iterable[TransferFit]) -> None:
        self.prefill = {f.theta: f for f in prefill}
        self.decode = {f.theta: f for f in decode}
        self.transfer = {(f.theta_src, f.theta_dst, f.direction): f for f in transfer}
        self._pre: dict[int, _Compiled] = {
            k: compile_pieces(f.start_s, f.history_token_s, f.segments) for k, f in self.prefill.items()
        }
        self._dec: dict[int, _Compiled] = {
            k: compile_pieces(f.start_s, f.context_token_s, f.segments) for k, f in self.decode.items()
        }
        self._kv: dict[tuple[int, int, Direction], _Compiled] = {
            k: compile_pieces(f.start_s, 0.0, f.segments) for k, f in self.transfer.items()
        }

    def t_pre(self, l_hist: int, l_incr: int, theta: int) -> float:
        """Seconds to prefill `l_incr` tokens after `l_hist` cached ones; 0 for no tokens."""
        breaks, pieces = _get(self._pre, theta, "T_pre")
        if l_incr <= 0:
            return 0.0
        p = pieces[bisect_left(breaks, l_incr)] if breaks else pieces[0]
        return p.const_s + p.second_s * l_hist + l_incr * (p.each_s + p.pair_s * (l_hist + 0.5 * l_incr))

    def t_dec(self, batch: int, context: int, theta: int) -> float:
        """Seconds of a decode step of `batch` sequences that hold `context` tokens in all; 0 for no sequence."""
        breaks, pieces = _get(self._dec, theta, "T_dec")
        if batch <= 0:
            return 0.0
        p = pieces[bisect_left(breaks, batch)] if breaks else pieces[0]
        return p.const_s + p.second_s * context + batch * p.each_s

    def t_mixed(self, batch: int, context: int, chunk: int, theta: int) -> float:
        """The sum of both parts: what a step that shares nothing between them would take, so never less than a real one."""
        return self.t_dec(batch, context, theta) + self.t_pre(0, chunk, theta)

    def t_kv(self, tokens: int, theta_src: int, theta_dst: int, direction: Direction) -> float:
        """Seconds to move the KV of `tokens` tokens; 0 for none."""
        breaks, pieces = _get(self._kv, (theta_src, theta_dst, direction), "T_kv")
        if tokens <= 0:
            return 0.0
        p = pieces[bisect_left(breaks, tokens)] if breaks else pieces[0]
        return p.const_s + tokens * p.each_s

    def knows_t_pre(self, l_hist: int, l_incr: int, theta: int) -> bool:
        """Whether the arguments are inside the measured range."""
        fit = _get(self.prefill, theta, "T_pre")
        return _inside(l_hist, fit.l_hist) and _inside(l_incr, fit.l_incr)

    def knows_t_dec(self, batch: int, context: int, theta: int) -> bool:
        """Whether the arguments are inside the measured range."""
        fit = _get(self.decode, theta, "T_dec")
        return _inside(batch, fit.batch) and _inside(context, fit.context)

    def knows_t_kv(self, tokens: int, theta_src: int, theta_dst: int, direction: Direction) -> bool:
        """Whether the arguments are inside the measured range."""
        return _inside(tokens, _get(self.transfer, (theta_src, theta_dst, direction), "T_kv").tokens)


def _get(fits: Mapping[K, F], key: K, name: str) -> F:
    try:
        return fits[key]
    except KeyError:
        raise ProfileError(
            f"the profile has no {name} for theta {key}, only for {sorted(map(str, fits))}; profile it too"
        ) from None


def _inside(value: int, span: Span) -> bool:
    return span[0] <= value <= span[1]
