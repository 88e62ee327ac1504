"""How many tokens of a local prefill fit into an engine step beside a running decode batch, by the batch's ITL slack.

The paper pauses the batch for a local prefill; vLLM mixes chunks of a fixed size into its steps. Here each step may last as long
as every running request can afford: its mean ITL stays within its target at every token, and what it is ahead of the target is
spent over many steps rather than in one, since a single long step is what a high percentile of ITL sees.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class DecodeProgress:
    """A running decode. `first_at` is when its first token left, on the clock of `now`; `gaps` how many have left since."""

    itl_target_s: float
    first_at: float
    gaps: int


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """The rule's constants.

    `margin`: share of each target that is aimed at. `spread`: a step spends this fraction (one over it) of what a request is ahead.
    `burst`: no step lasts longer than so many targets. `floor_tokens`, `floor_share`: what a prefill gets in every step even if
    the batch has no slack, so that it always ends: at least so many tokens, and as many as make the step longer by this share.
    Chunks below `max_tokens` are multiples of `grain`, except the floor.
    """

    max_tokens: int
    floor_tokens: int = 16
    floor_share: float = 0.25
    margin: float = 0.9
    spread: float = 8.0
    burst: float = 2.0
    grain: int = 8


def step_allowance(now: float, running: Sequence[DecodeProgress], decode_s: float, limits: ChunkLimits) -> float:
    """Seconds that the step starting `now` may last; infinite with nothing running. `decode_s`: the step without any prefill.

    A request with target t (the margin included) that is ahead by a = t * gaps - (now - first_at) allows t + a / spread but no
    more than burst * t; one that is behind (a < 0) allows t + a, so it is back within its target after this very step. The batch
    allows the least of these, and never less than decode_s * (1 + floor_share): a batch whose targets cannot be met, or that one
    late request holds, still lets prefills have their share of the time. As long as decode_s * (1 + floor_share) <= t and steps
    last as predicted, elapsed <= t * gaps holds after every step, so the mean ITL is within the target whenever a round ends.
    """
    allowed = inf
    for r in running:
        target = limits.margin * r.itl_target_s
        ahead = target * r.gaps - (now - r.first_at)
        share = min(target + ahead / limits.spread, limits.burst * target) if ahead > 0 else target + ahead
        allowed = min(allowed, share)
    return max(allowed, decode_s * (1 + limits.floor_share))


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
