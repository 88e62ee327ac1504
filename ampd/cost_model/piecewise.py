"""The cost model of a measured engine: fast lookups in fitted functions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from ampd.cost_model.functions import DecodeFit, MixedFit, PrefillFit, Span, TransferFit
from ampd.cost_model.keys import by_way, nearest_theta, nearest_way
from ampd.cost_model.pieces import decode_pieces, mixed_pieces, prefill_pieces, transfer_pieces
from ampd.policy.types import Direction


class PiecewiseCostModel:
    """A `policy.types.CostModel` over fits, keyed by theta. Every method raises ProfileError for a theta that has no fit.

    Outside the measured range a function is extrapolated by its outer segment; `knows_*` tell whether arguments are inside it.
    `transport` is the one that T_kv means when it is asked for none; with `foreign` the nearest theta that has a fit answers for
    one that has none. `ampd.cost_model.arrays` has the same functions for arrays.
    """

    def __init__(
        self,
        prefill: Iterable[PrefillFit],
        decode: Iterable[DecodeFit],
        transfer: Iterable[TransferFit],
        mixed: Iterable[MixedFit] = (),
        *,
        transport: str | None = None,
        foreign: bool = False,
    ) -> None:
        self.prefill = {f.theta: f for f in prefill}
        self.decode = {f.theta: f for f in decode}
        self.mixed = {f.theta: f for f in mixed}
        self.ways = by_way(transfer, transport)
        self.transfer = {way[:3]: f for way, f in self.ways.items() if way[3] is None}  # by the transport meant when none is named
        self.foreign = foreign
        self._pre = {k: prefill_pieces(f) for k, f in self.prefill.items()}
        self._dec = {k: decode_pieces(f) for k, f in self.decode.items()}
        self._mix = {k: (mixed_pieces(f), f.sequence_s) for k, f in self.mixed.items()}
        self._kv = {k: (transfer_pieces(f), f.block_s, f.block_size) for k, f in self.ways.items()}

    def t_pre(self, l_hist: int, l_incr: int, theta: int) -> float:
        """Seconds to prefill `l_incr` tokens after `l_hist` cached ones; 0 for no tokens."""
        try:
            breaks, pieces = self._pre[theta]
        except KeyError:
            return self.t_pre(l_hist, l_incr, nearest_theta("T_pre", theta, self.prefill, allowed=self.foreign))
        if l_incr <= 0:
            return 0.0
        const, second, each, pair, square = pieces[bisect_left(breaks, l_incr)] if breaks else pieces[0]
        return const + second * l_hist + l_incr * (each + pair * l_hist + square * l_incr)

    def t_dec(self, batch: int, context: int, theta: int) -> float:
        """Seconds of a decode step of `batch` sequences that hold `context` tokens in all; 0 for no sequence."""
        try:
            breaks, pieces = self._dec[theta]
        except KeyError:
            return self.t_dec(batch, context, nearest_theta("T_dec", theta, self.decode, allowed=self.foreign))
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
            if not (self.foreign and self._mix):
                return self.t_dec(batch, context, theta) + self.t_pre(0, chunk, theta)
            compiled = self._mix[nearest_theta("T_mixed", theta, self._mix, allowed=True)]
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
            return self.t_kv(tokens, *nearest_way((theta_src, theta_dst, direction, transport), self.ways, allowed=self.foreign))
        if tokens <= 0:
            return 0.0
        const, _, each, _, _ = pieces[bisect_left(breaks, tokens)] if breaks else pieces[0]
        return const + tokens * each + block_s * -(-tokens // block_size)

    def knows_t_pre(self, l_hist: int, l_incr: int, theta: int) -> bool:
        """Whether the arguments are inside the measured range."""
        fit = self.prefill.get(theta)
        if fit is None:
            nearest_theta("T_pre", theta, self.prefill, allowed=self.foreign)
            return False
        return _inside(l_hist, fit.l_hist) and _inside(l_incr, fit.l_incr)

    def knows_t_dec(self, batch: int, context: int, theta: int) -> bool:
        """Whether the arguments are inside the measured range."""
        fit = self.decode.get(theta)
        if fit is None:
            nearest_theta("T_dec", theta, self.decode, allowed=self.foreign)
            return False
        return _knows_batch(fit, batch, context)

    def knows_t_mixed(self, batch: int, context: int, chunk: int, theta: int) -> bool:
        """Whether the arguments are inside the measured range; no, where T_mixed is the plain sum."""
        if chunk <= 0:
            return self.knows_t_dec(batch, context, theta)
        fit = self.mixed.get(theta)
        return fit is not None and _inside(chunk, fit.chunk) and _knows_batch(fit, batch, context)

    def knows_t_kv(self, tokens: int, theta_src: int, theta_dst: int, direction: Direction, transport: str | None = None) -> bool:
        """Whether the arguments are inside the measured range."""
        way = theta_src, theta_dst, direction, transport
        if way not in self.ways:
            nearest_way(way, self.ways, allowed=self.foreign)
            return False
        return _inside(tokens, self.ways[way].tokens)


def _knows_batch(fit: DecodeFit | MixedFit, batch: int, context: int) -> bool:
    if not (_inside(batch, fit.batch) and _inside(context, fit.context)):
        return False
    return fit.sequence is None or fit.sequence[0] * batch <= context <= fit.sequence[1] * batch


def _inside(value: int, span: Span) -> bool:
    return span[0] <= value <= span[1]
