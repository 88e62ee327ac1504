"""Fitted segments in the form that is evaluated."""

from __future__ import annotations

from collections.abc import Sequence

from ampd.cost_model.functions import DecodeFit, MixedFit, PrefillFit, Segment, TransferFit

# A piece is (const_s, second_s, each_s, pair_s, square_s) and stands for
# `const_s + second_s * y + x * (each_s + pair_s * y + square_s * x)`. Plain tuples: they are evaluated in every decision.
Piece = tuple[float, float, float, float, float]
Compiled = tuple[tuple[int, ...], tuple[Piece, ...]]  # inner breakpoints of x, and the pieces between them


def prefill_pieces(fit: PrefillFit) -> Compiled:
    """x: new tokens, y: history. A token attends to all of the history and to the new ones before it."""
    return compile_pieces(fit.start_s, fit.history_token_s, fit.segments)


def decode_pieces(fit: DecodeFit) -> Compiled:
    """x: sequences, y: context."""
    return compile_pieces(fit.start_s, fit.context_token_s, fit.segments, with_x=False)


def mixed_pieces(fit: MixedFit) -> Compiled:
    """x: tokens of the chunk, y: context. The chunk does not attend to the batch's context."""
    return compile_pieces(fit.start_s, fit.context_token_s, fit.segments, with_y=False)


def transfer_pieces(fit: TransferFit) -> Compiled:
    """x: tokens."""
    return compile_pieces(fit.start_s, 0.0, fit.segments)


def compile_pieces(
    start_s: float, second_s: float, segments: Sequence[Segment], *, with_y: bool = True, with_x: bool = True
) -> Compiled:
    """Pieces that join without a step. `second_s` is the rate of the second argument, y.

    A unit of x pairs with all of y, with the x before it, or with both.
    """
    pieces: list[Piece] = []
    breaks: list[int] = []
    x, const_s = 0, start_s
    for segment in segments:
        pair_s, square_s = segment.pair_s * with_y, segment.pair_s * with_x / 2
        if pieces:
            _, _, each, pair, square = pieces[-1]
            const_s += x * (each - segment.each_s) + x * x * (square - square_s)
            second_s += x * (pair - pair_s)
        pieces.append((const_s, second_s, segment.each_s, pair_s, square_s))
        x = segment.up_to or 0
        breaks.append(x)
    return tuple(breaks[:-1]), tuple(pieces)
