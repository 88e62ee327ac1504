"""Fitted segments in the form that is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ampd.cost_model.functions import Segment

# A piece is (const_s, second_s, each_s, pair_s, square_s) and stands for
# `const_s + second_s * y + x * (each_s + pair_s * y + square_s * x)`. Plain tuples: they are evaluated in every decision.
Piece = tuple[float, float, float, float, float]
Compiled = tuple[tuple[int, ...], tuple[Piece, ...]]  # inner breakpoints of x, and the pieces between them


def compile_pieces(start_s: float, second_s: float, segments: Sequence[Segment], *, own: bool = True) -> Compiled:
    """Pieces that join without a step. `second_s` is the rate of the second argument, y.

    `own`: each unit of x pairs with the x before it as with y, as a token attends to earlier new ones as to history.
    """
    half = 0.5 if own else 0.0
    first = segments[0]
    pieces = [(start_s, second_s, first.each_s, first.pair_s, half * first.pair_s)]
    breaks = []
    for segment, following in pairwise(segments):
        x = segment.up_to or 0
        each, pair = segment.each_s - following.each_s, segment.pair_s - following.pair_s
        const_s = pieces[-1][0] + x * each + x * x * half * pair
        pieces.append((const_s, pieces[-1][1] + x * pair, following.each_s, following.pair_s, half * following.pair_s))
        breaks.append(x)
    return tuple(breaks), tuple(pieces)
