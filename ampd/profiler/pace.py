"""The engines' speed at the moment: a short prefill, timed before and after every sample.

Shared machines have neighbours that no counter shows, on the other hyperthread of a core or in its caches. For some seconds an
engine then computes half as fast, though the CPU is its own all the time, and medians over such samples are of the one state or of
the other. So samples begin when the engines are at their usual speed, and count only if they still are at the end. The work is the
engine's own because matrix units suffer more from a neighbour than anything else does that could be timed.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from statistics import median, quantiles
from typing import Literal

Engine = Literal["prefill", "decode"]
Work = Callable[[Engine], Awaitable[float]]

# Times over this multiple of the usual one are slow.
SLOW = 1.15
# 90 % quantile of the times over their median: above it the run is called noisy.
MAX_SPREAD = 1.25
_USUAL = 5  # the usual time is the fastest fifth's of the last `_REMEMBERED`: what is slow for long becomes usual
_REMEMBERED = 300
_AT_FIRST = 10
_POLL_S = 0.05


class Pace:
    """`work` does a fixed piece of work on an idle engine and returns its seconds."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._last: dict[Engine, deque[float]] = {}
        self.ratios: list[float] = []  # of each time to the usual one

    async def slow(self, engines: Sequence[Engine]) -> bool:
        """Whether one of them is slow now."""
        return max([await self._ratio(engine) for engine in engines], default=0.0) > SLOW

    async def _ratio(self, engine: Engine) -> float:
        last = self._last.setdefault(engine, deque(maxlen=_REMEMBERED))
        while len(last) < _AT_FIRST:
            last.append(await self._work(engine))
        last.append(await self._work(engine))
        ratio = last[-1] / sorted(last)[len(last) // _USUAL]
        self.ratios.append(ratio)
        return ratio

    async def settle(self, engines: Sequence[Engine], patience_s: float) -> None:
        """Wait until none is slow, but no longer than that."""
        ends = time.monotonic() + patience_s
        while await self.slow(engines):
            if time.monotonic() >= ends:
                return
            await asyncio.sleep(_POLL_S)

    def report(self) -> list[str]:
        """A line when the speed changed much."""
        if len(self.ratios) < _AT_FIRST or (spread := quantiles(self.ratios, n=10)[8] / median(self.ratios)) <= MAX_SPREAD:
            return []
        return [f"a fixed prefill took {spread:.2f} times its median time in a tenth of {len(self.ratios)} runs"]
