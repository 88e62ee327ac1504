"""The fitted cost functions: continuous, non-decreasing, piecewise in their first argument.

Each function starts at `start_s` and grows, within a segment, at the segment's own rates (seconds per token, per sequence, or per
pair of a new token and a token it attends to). Rates are non-negative, so no function ever falls as work grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from ampd.cost_model.points import Seconds
from ampd.policy.types import Direction

Span = tuple[int, int]


class RegionError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of FitError: the points whose arguments lie in the ranges `where`, by argument name, both ends included."""

    where: dict[str, Span]
    heldout_median: Seconds
    heldout_p95: Seconds
    points: int


class FitError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Relative errors |predicted / measured - 1| at points that the fit had not seen (k-fold cross-validation)."""

    heldout_median: Seconds
    heldout_p95: Seconds
    points: int
    regions: list[RegionError] = []


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
    """T_dec. Segments are over the batch size; `context_token_s` over the batch's tokens of KV in all.

    A segment's `pair_s` is what each of its sequences adds to the time of a token of KV.
    """

    theta: int
    start_s: Seconds
    context_token_s: Seconds
    segments: list[Segment]
    batch: Span
    context: Span
    error: FitError
    sequence: Span | None = None  # of context / batch

    def __post_init__(self) -> None:
        _check(self.segments)


class MixedFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """T_mixed: the larger of T_dec and this. Segments are over the chunk, as in PrefillFit, but without history."""

    theta: int
    start_s: Seconds
    sequence_s: Seconds
    context_token_s: Seconds
    segments: list[Segment]
    batch: Span
    context: Span
    chunk: Span
    error: FitError
    sequence: Span | None = None  # of context / batch

    def __post_init__(self) -> None:
        _check(self.segments)


class TransferFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """T_kv in one direction between two parallel strategies. Segments are over tokens; `block_s` is for each begun block.

    `transport` None: the profile's only one.
    """

    theta_src: int
    theta_dst: int
    direction: Direction
    start_s: Seconds
    segments: list[Segment]
    tokens: Span
    error: FitError
    block_s: Seconds = 0.0
    block_size: int = 1
    transport: str | None = None

    def __post_init__(self) -> None:
        _check(self.segments)
        if self.block_size < 1:
            raise ValueError(f"block_size must be at least 1, got {self.block_size}")
        if any(s.pair_s for s in self.segments):
            raise ValueError("segments of T_kv have no pair_s")


def _check(segments: Sequence[Segment]) -> None:
    if not segments:
        raise ValueError("segments must not be empty")
    if segments[-1].up_to is not None:
        raise ValueError(f"the last segment must have no end, but its up_to is {segments[-1].up_to}")
    ends = [s.up_to for s in segments[:-1]]
    if any(a is None or (b is not None and a >= b) for a, b in pairwise([*ends, None])):
        raise ValueError(f"the segments' up_to must grow, got {ends}")
