"""The cost model of a measured engine: fast lookups in fitted functions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import TypeVar

from ampd.cost_model.functions import DecodeFit, MixedFit, PrefillFit, Span, TransferFit
from ampd.cost_model.pieces import compile_pieces
from ampd.errors import ProfileError
from ampd.policy.types import Direction

F = TypeVar("F")
Way = tuple[int, int, Direction, str | None]  # (theta_src, theta_dst, direction, transport)


class PiecewiseCostModel:
    """A `policy.types.CostModel` over fits, keyed by theta. Every method raises ProfileError for a theta that has no fit.

    Outside the measured range a function is extrapolated by its outer segment; `knows_*` tell whether arguments are inside it.
    `transport` is the one that T_kv means when it is asked for none; `nearest_theta` has a theta without fit answered by the
    nearest one that has. What `ampd.cost_model.arrays` computes for arrays is equal.
    """

    def __init__(
        self,
        prefill: Iterable[PrefillFit],
        decode: Iterable[DecodeFit],
        transfer: Iterable[TransferFit],
        mixed: Iterable[MixedFit] = (),
        *,
        transport: str | None = None,
        nearest_theta: bool = False,
    ) -> None:
        self.prefill = {f.theta: f for f in prefill}
        self.decode = {f.theta: f for f in decode}
        self.mixed = {f.theta: f for f in mixed}
        self._ways = _by_way(transfer, transport)
        self.transfer = {way[:3]: f for way, f in self._ways.items() if way[3] is None}  # by the transport meant when none is named
        self._nearest = nearest_theta
        self._pre = {k: compile_pieces(f.start_s, f.history_token_s, f.segments) for k, f in self.prefill.items()}
        self._dec = {k: compile_pieces(f.start_s, f.context_token_s, f.segments, own=False) for k, f in self.decode.items()}
        self._mix = {k: (compile_pieces(f.start_s, f.context_token_s, f.segments), f.sequence_s) for k, f in self.mixed.items()}
        self._kv = {k: (compile_pieces(f.start_s, 0.0, f.segments), f.block_s, f.block_size) for k, f in self._ways.items()}

    def t_pre(self, l_hist: int, l_incr: int, theta: int) -> float:
        """Seconds to prefill `l_incr` tokens after `l_hist` cached ones; 0 for no tokens."""
        try:
            breaks, pieces = self._pre[theta]
        except KeyError:
            return self.t_pre(l_hist, l_incr, self._theta("T_pre", theta, self.prefill))
        if l_incr <= 0:
            return 0.0
        const, second, each, pair, square = pieces[bisect_left(breaks, l_incr)] if breaks else pieces[0]
        return const + second * l_hist + l_incr * (each + pair * l_hist + square * l_incr)

    def t_dec(self, batch: int, context: int, theta: int) -> float:
        """Seconds of a decode step of `batch` sequences that hold `context` tokens in all; 0 for no sequence."""
        try:
            breaks, pieces = self._dec[theta]
        except KeyError:
            return self.t_dec(batch, context, self._theta("T_dec", theta, self.decode))
        if batch <= 0:
            return 0.0
        const, second, each, pair, _ = pieces[bisect_left(breaks, batch)] if breaks else pieces[0]
        return const + second * context + batch * (each + pair * context)

    def t_mixed(self, batch: int, context: int, chunk: int, theta: int) -> float:
        """Seconds of a decode step that also prefills `chunk` tokens which no history precedes.

        What the chunk's own history adds is `t_pre(l_hist, chunk) - t_pre(0, chunk)`. Without a fit it is the sum of both parts:
        what a step that shares nothing between them would take, so never less than a real one.
        """
        if chunk <= 0:
            return self.t_dec(batch, context, theta)
        compiled = self._mix.get(theta)
        if compiled is None:
            if not (self._nearest and self._mix):
                return self.t_dec(batch, context, theta) + self.t_pre(0, chunk, theta)
            compiled = self._mix[_nearest(theta, self._mix)]
        if batch <= 0:
            return self.t_pre(0, chunk, theta)
        (breaks, pieces), sequence = compiled
        const, second, each, _, square = pieces[bisect_left(breaks, chunk)] if breaks else pieces[0]
        mixed = const + second * context + sequence * batch + chunk * (each + square * chunk)
        return max(mixed, self.t_dec(batch, context, theta))

    def t_kv(self, tokens: int, theta_src: int, theta_dst: int, direction: Direction, transport: str | None = None) -> float:
        """Seconds to move the KV of `tokens` tokens; 0 for none."""
        try:
            (breaks, pieces), block_s, block_size = self._kv[theta_src, theta_dst, direction, transport]
        except KeyError:
            return self.t_kv(tokens, *self._way((theta_src, theta_dst, direction, transport)))
        if tokens <= 0:
            return 0.0
        const, _, each, _, _ = pieces[bisect_left(breaks, tokens)] if breaks else pieces[0]
        return const + tokens * each + block_s * -(-tokens // block_size)

    def knows_t_pre(self, l_hist: int, l_incr: int, theta: int) -> bool:
        """Whether the arguments are inside the measured range."""
        fit = self.prefill.get(theta)
        if fit is None:
            self._theta("T_pre", theta, self.prefill)
            return False
        return _inside(l_hist, fit.l_hist) and _inside(l_incr, fit.l_incr)

    def knows_t_dec(self, batch: int, context: int, theta: int) -> bool:
        """Whether the arguments are inside the measured range."""
        fit = self.decode.get(theta)
        if fit is None:
            self._theta("T_dec", theta, self.decode)
            return False
        return _knows_batch(fit, batch, context)

    def knows_t_mixed(self, batch: int, context: int, chunk: int, theta: int) -> bool:
        """Whether the arguments are inside the measured range; no, where T_mixed is the plain sum."""
        fit = self.mixed.get(theta)
        return fit is not None and _inside(chunk, fit.chunk) and _knows_batch(fit, batch, context)

    def knows_t_kv(self, tokens: int, theta_src: int, theta_dst: int, direction: Direction, transport: str | None = None) -> bool:
        """Whether the arguments are inside the measured range."""
        way = theta_src, theta_dst, direction, transport
        if way not in self._ways:
            self._way(way)
            return False
        return _inside(tokens, self._ways[way].tokens)

    def _theta(self, name: str, theta: int, fits: Mapping[int, object]) -> int:
        if not (self._nearest and fits):
            raise ProfileError(f"the profile has no {name} for theta {theta}, only for {sorted(fits)}; profile it too")
        return _nearest(theta, fits)

    def _way(self, way: Way) -> Way:
        src, dst, direction, transport = way
        near = [w for w in self._ways if w[2:] == (direction, transport)]
        if not (self._nearest and near):
            known = ", ".join(f"{s}->{d} {to}{f' by {by}' if by else ''}" for s, d, to, by in self._ways)
            by = f" by {transport}" if transport else ""
            raise ProfileError(f"the profile has no T_kv for theta {src}->{dst} {direction}{by}, only for {known}; profile it too")
        return min(near, key=lambda w: abs(w[0] - src) + abs(w[1] - dst))


def _by_way(transfer: Iterable[TransferFit], transport: str | None) -> dict[Way, TransferFit]:
    """Fits by way; those of the profile's transport, or else the first, also under None."""
    fits: dict[Way, TransferFit] = {}
    for fit in transfer:
        way = fit.theta_src, fit.theta_dst, fit.direction
        fits[*way, fit.transport] = fit
        if (*way, None) not in fits or fit.transport == transport:
            fits[*way, None] = fit
    return fits


def _nearest(theta: int, fits: Mapping[int, object]) -> int:
    return min(fits, key=lambda known: abs(known - theta))


def _knows_batch(fit: DecodeFit | MixedFit, batch: int, context: int) -> bool:
    if not (_inside(batch, fit.batch) and _inside(context, fit.context)):
        return False
    return fit.sequence is None or fit.sequence[0] * batch <= context <= fit.sequence[1] * batch


def _inside(value: int, span: Span) -> bool:
    return span[0] <= value <= span[1]
