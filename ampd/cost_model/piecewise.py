"""The cost model of a measured engine: fast lookups in fitted functions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from ampd.cost_model.functions import DecodeFit, PrefillFit, Segment, Span, TransferFit, compile_pieces
from ampd.errors import ProfileError
from ampd.policy.types import Direction

K = TypeVar("K")
F = TypeVar("F")
# Breakpoints, and of each piece (const_s, second_s, each_s, pair_s). Plain tuples: they are evaluated in every decision.
_Compiled = tuple[tuple[int, ...], tuple[tuple[float, float, float, float], ...]]


class PiecewiseCostModel:
    """A `policy.types.CostModel` over fits, keyed by theta. Every method raises ProfileError for a theta that has no fit.

    Outside the measured range a function is extrapolated by its outer segment; `knows_*` tell whether arguments are inside it.
    """

    def __init__(self, prefill: Iterable[PrefillFit], decode: Iterable[DecodeFit], transfer: Iterable[TransferFit]) -> None:
        self.prefill = {f.theta: f for f in prefill}
        self.decode = {f.theta: f for f in decode}
        self.transfer = {(f.theta_src, f.theta_dst, f.direction): f for f in transfer}
        self._pre = {k: _compile(f.start_s, f.history_token_s, f.segments) for k, f in self.prefill.items()}
        self._dec = {k: _compile(f.start_s, f.context_token_s, f.segments) for k, f in self.decode.items()}
        self._kv = {k: _compile(f.start_s, 0.0, f.segments) for k, f in self.transfer.items()}

    def t_pre(self, l_hist: int, l_incr: int, theta: int) -> float:
        """Seconds to prefill `l_incr` tokens after `l_hist` cached ones; 0 for no tokens."""
        try:
            breaks, pieces = self._pre[theta]
        except KeyError:
            raise _unknown("T_pre", theta, self.prefill) from None
        if l_incr <= 0:
            return 0.0
        const, second, each, pair = pieces[bisect_left(breaks, l_incr)] if breaks else pieces[0]
        return const + second * l_hist + l_incr * (each + pair * (l_hist + 0.5 * l_incr))

    def t_dec(self, batch: int, context: int, theta: int) -> float:
        """Seconds of a decode step of `batch` sequences that hold `context` tokens in all; 0 for no sequence."""
        try:
            breaks, pieces = self._dec[theta]
        except KeyError:
            raise _unknown("T_dec", theta, self.decode) from None
        if batch <= 0:
            return 0.0
        const, second, each, _ = pieces[bisect_left(breaks, batch)] if breaks else pieces[0]
        return const + second * context + batch * each

    def t_mixed(self, batch: int, context: int, chunk: int, theta: int) -> float:
        """The sum of both parts: what a step that shares nothing between them would take, so never less than a real one."""
        return self.t_dec(batch, context, theta) + self.t_pre(0, chunk, theta)

    def t_kv(self, tokens: int, theta_src: int, theta_dst: int, direction: Direction) -> float:
        """Seconds to move the KV of `tokens` tokens; 0 for none."""
        try:
            breaks, pieces = self._kv[theta_src, theta_dst, direction]
        except KeyError:
            raise _unknown("T_kv", (theta_src, theta_dst, direction), self.transfer) from None
        if tokens <= 0:
            return 0.0
        const, _, each, _ = pieces[bisect_left(breaks, tokens)] if breaks else pieces[0]
        return const + tokens * each

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


def _compile(start_s: float, second_s: float, segments: Sequence[Segment]) -> _Compiled:
    breaks, pieces = compile_pieces(start_s, second_s, segments)
    return breaks, tuple((p.const_s, p.second_s, p.each_s, p.pair_s) for p in pieces)


def _get(fits: Mapping[K, F], key: K, name: str) -> F:
    try:
        return fits[key]
    except KeyError:
        raise _unknown(name, key, fits) from None


def _unknown(name: str, key: object, fits: Iterable[object]) -> ProfileError:
    return ProfileError(f"the profile has no {name} for theta {key}, only for {sorted(map(str, fits))}; profile it too")


def _inside(value: int, span: Span) -> bool:
    return span[0] <= value <= span[1]
