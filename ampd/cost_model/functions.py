"""The fitted cost functions: continuous, non-decreasing, piecewise in their first argument.

Each function starts at `start_s` and grows, within a segment, at the segment's own rates (seconds per token, per sequence, or per
pair of a new token and a token it attends to). Rates are non-negative, so no function ever falls as work grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated

import msgspec

from ampd.policy.types import Direction

Seconds = Annotated[float, msgspec.Meta(ge=0)]
Span = tuple[int, int]


class FitError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Relative errors |predicted / measured - 1| at points that the fit had not seen (k-fold cross-validation)."""

    heldout_median: Seconds
    heldout_p95: Seconds
    points: int


class Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rates up to and including `up_to` of the first argument; None: without end."""

    up_to: int | None
    each_s: Seconds
    pair_s: Seconds = 0.0


class PrefillFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """T_pre. The n-th new token costs `each_s + pair_s * (l_hist + n)` in its segment (linear and attention term)."""

    theta: int
    start_s: Seconds
    history_token_s: Seconds
    segments: list[Segment]
    l_hist: Span  # measured range
    l_incr: Span
    error: FitError

    def __post_init__(self) -> None:
        _check(self.segments)


class DecodeFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """T_dec. Segments are over the batch size; `context_token_s` over the batch's tokens of KV in all."""

    theta: int
    start_s: Seconds
    context_token_s: Seconds
    segments: list[Segment]
    batch: Span
    context: Span
    error: FitError

    def __post_init__(self) -> None:
        _check(self.segments)


class TransferFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """T_kv in one direction between two parallel strategies. Segments are over tokens."""

    theta_src: int
    theta_dst: int
    direction: Direction
    start_s: Seconds
    segments: list[Segment]
    tokens: Span
    error: FitError

    def __post_init__(self) -> None:
        _check(self.segments)


class Piece(msgspec.Struct, frozen=True):
    """One segment in the form that is evaluated: `const_s + second_s * y + x * (each_s + pair_s * (y + x / 2))`."""

    const_s: float
    second_s: float
    each_s: float
    pair_s: float


def compile_pieces(start_s: float, second_s: float, segments: Sequence[Segment]) -> tuple[tuple[int, ...], tuple[Piece, ...]]:
    """Inner breakpoints, and pieces that join without a step. `second_s` is the rate of the second argument."""
    pieces = [Piece(start_s, second_s, segments[0].each_s, segments[0].pair_s)]
    breaks = []
    for segment, following in pairwise(segments):
        x = segment.up_to or 0
        each, pair = segment.each_s - following.each_s, segment.pair_s - following.pair_s
        const_s = pieces[-1].const_s + x * each + x * x / 2 * pair
        pieces.append(Piece(const_s, pieces[-1].second_s + x * pair, following.each_s, following.pair_s))
        breaks.append(x)
    return tuple(breaks), tuple(pieces)


def _check(segments: Sequence[Segment]) -> None:
    if not segments:
        raise ValueError("segments must not be empty")
    if segments[-1].up_to is not None:
        raise ValueError(f"the last segment must have no end, but its up_to is {segments[-1].up_to}")
    ends = [s.up_to for s in segments[:-1]]
    if any(a is None or (b is not None and a >= b) for a, b in pairwise([*ends, None])):
        raise ValueError(f"the segments' up_to must grow, got {ends}")
