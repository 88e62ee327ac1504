"""How many tokens of a local prefill fit into an engine step beside a running decode batch, by the batch's ITL slack.

The paper pauses the batch for a local prefill; vLLM mixes chunks of a fixed size into its steps. Here each step may last as long
as every running request can afford: what it is ahead of its target's mean ITL, and part of what it can still make up until its
expected end, so that its mean ITL is within the target when it ends. A single long step is what a high percentile of ITL sees, so a
step is bounded too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

_ANSWERS = 64  # a mean over the last so many, older ones fading


@dataclass(frozen=True, slots=True)
class DecodeProgress:
    """A running decode. `first_at` is when its first token left, on the clock of `now`; `gaps` how many have left since, and `left`
    how many are still expected to.
    """

    itl_target_s: float
    first_at: float
    gaps: int
    left: float = 0.0


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """The rule's constants.

    `margin`: share of each target that is aimed at. `recover`: share of what a request could make up until its expected end by
    which it may be behind. `burst`: no step lasts longer than so many targets. `floor_tokens`, `floor_share`: what a prefill gets
    in every step even if the batch has no slack, so that it always ends: at least so many tokens, and as many as make the step
    longer by this share. Chunks below `max_tokens` are multiples of `grain`, except the floor.
    """

    max_tokens: int
    floor_tokens: int = 16
    floor_share: float = 0.25
    margin: float = 0.95
    recover: float = 0.75
    burst: float = 3.0
    grain: int = 8


class AnswerLengths:
    """How long answers have been of late, which is all that is known of how long a running one will be."""

    __slots__ = ("_seen", "mean")

    def __init__(self) -> None:
        self.mean = 0.0  # tokens; 0 before any has ended
        self._seen = 0

    def ended(self, tokens: int) -> None:
        """An answer had so many tokens."""
        self._seen = min(self._seen + 1, _ANSWERS)
        self.mean += (tokens - self.mean) / self._seen

    def left(self, given: int, most: int) -> float:
        """Tokens still expected of an answer of at most `most`, after `given`."""
        return max(0.0, min(self.mean, most) - given)


def step_allowance(now: float, running: Sequence[DecodeProgress], decode_s: float, limits: ChunkLimits) -> float:
    """Seconds that the step starting `now` may last; infinite with nothing running. `decode_s`: the step without any prefill.

    A request with target t (the margin included) is ahead by a = t * gaps - (now - first_at), negative when behind, and gains
    g = t - decode_s * (1 + floor_share) at least with every step that the batch is given as little as possible. It allows
    t + a + recover * (left - 1) * g, but no more than burst * t. The batch allows the least of these, and never less than
    decode_s * (1 + floor_share): a batch whose targets cannot be met, or that one late request holds, still lets prefills have
    their share of the time. As long as g >= 0 and steps last as predicted, elapsed <= t * gaps + recover * left * g holds after
    every step: a request without expectations is within its target at every token, one with them when it ends as expected.
    """
    least_s = decode_s * (1 + limits.floor_share)
    allowed = inf
    for r in running:
        target = limits.margin * r.itl_target_s
        share = target * (r.gaps + 1) - (now - r.first_at)
        if r.left > 1 and target > least_s:
            share += limits.recover * (r.left - 1) * (target - least_s)
        if share > limits.burst * target:
            share = limits.burst * target
        if share < allowed:
            allowed = share
    return max(allowed, least_s)


def prefill_budget(now: float, running: Sequence[DecodeProgress], predict: Callable[[int], float], limits: ChunkLimits) -> int:
    """Tokens of prefill for the step starting `now`: the most whose predicted step fits `step_allowance`, within the limits.

    `predict(n)`: seconds of the step with n tokens of prefill, non-decreasing; n = 0 is the step without. With nothing running
    the answer is `max_tokens`. At least 1.
    """
    if not running:
        return limits.max_tokens
    allowed = step_allowance(now, running, predict(0), limits)
    if predict(limits.max_tokens) <= allowed:
        return limits.max_tokens
    grains = range(limits.max_tokens // limits.grain + 1)
    fitting = bisect_right(grains, allowed, key=lambda n: predict(n * limits.grain)) - 1
    return min(limits.max_tokens, max(fitting * limits.grain, limits.floor_tokens, 1))
