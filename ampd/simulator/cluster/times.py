"""Step times of a decode worker, as sums over steps of an unchanged batch: T_dec is linear in the context."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from ampd.policy.types import CostModel

_FAR = 1 << 20


class Steps:
    """`count` steps of a batch: the n-th, from 0 on, takes first_s + n * more_s."""

    __slots__ = ("_half", "count", "first_s", "more_s")

    def __init__(self, count: int, first_s: float, more_s: float) -> None:
        self.count, self.first_s, self.more_s = count, first_s, more_s
        self._half = 0.5 * more_s

    def lasts_s(self, count: int) -> float:
        """Seconds of the first `count` steps."""
        return count * (self.first_s + (count - 1) * self._half)

    def over_after(self, seconds: float) -> int:
        """How many steps are over after so many seconds, `count` at most."""
        count, first, half = self.count, self.first_s, self._half
        if count < 2:
            return count if first <= seconds else 0
        if half * count <= 1e-9 * first:
            guess = int(seconds / first)
        else:
            middle = first - half
            guess = int((sqrt(middle * middle + 4.0 * half * seconds) - middle) / (2.0 * half))
        if guess > count:
            guess = count
        # Rounding may be one step off the sums that events go by.
        while guess > 0 and guess * (first + (guess - 1) * half) > seconds:
            guess -= 1
        while guess < count and (guess + 1) * (first + guess * half) <= seconds:
            guess += 1
        return guess


class StepTimes:
    """The step times of one kind of decode worker."""

    __slots__ = ("_cost", "_lines", "_theta")

    def __init__(self, cost: CostModel, theta: int) -> None:
        self._cost, self._theta = cost, theta
        self._lines: dict[int, tuple[float, float]] = {}

    def _line(self, batch: int) -> tuple[float, float]:
        """(Seconds, seconds for each token of context) of a step of `batch` sequences."""
        flat = self._cost.t_dec(batch, 0, self._theta)
        line = self._lines[batch] = flat, (self._cost.t_dec(batch, _FAR, self._theta) - flat) / _FAR
        return line

    def unchanged(self, batch: int, context: int, count: int) -> Steps:
        """`count` steps of a batch, each of which adds a token to every sequence."""
        flat, slope = self._lines.get(batch) or self._line(batch)
        return Steps(count, flat + slope * context, slope * batch)

    def beside(self, batch: int, context: int, done: int, chunk: int) -> float:
        """A step that also computes `chunk` tokens of one prefill, after `done` of the same prompt."""
        cost, theta = self._cost, self._theta
        if not chunk:
            return cost.t_dec(batch, context, theta)
        attention = cost.t_pre(done, chunk, theta) - cost.t_pre(0, chunk, theta) if done else 0.0
        return cost.t_mixed(batch, context, chunk, theta) + (attention if attention > 0.0 else 0.0)

    def mixed(self, batch: int, context: int, pieces: Sequence[tuple[int, int]]) -> float:
        """A step that also computes (tokens after tokens of the same prompt) of one or more prefills, in (done, chunk) each.

        T_mixed, or T_pre without a batch, takes all chunks for one prompt without history, in which each attends to those before
        it; the difference to what it really attends to is added.
        """
        cost, theta = self._cost, self._theta
        chunk = 0
        attention = 0.0
        for done, tokens in pieces:
            if done != chunk:
                attention += cost.t_pre(done, tokens, theta) - cost.t_pre(chunk, tokens, theta)
            chunk += tokens
        base = cost.t_mixed(batch, context, chunk, theta) if batch else cost.t_pre(0, chunk, theta)
        return max(base + attention, cost.t_dec(batch, context, theta))
