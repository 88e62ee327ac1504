"""A worker's TTFT and ITL windows: sums and counts by whole seconds, as ampd/state/rows.py keeps them."""

from __future__ import annotations

from collections import deque
from math import ceil, floor


class Window:
    """`ttft_s` and `itl_s` are the means as last folded; None when the window is empty."""

    __slots__ = ("_buckets", "_length", "itl_s", "ttft_s")

    def __init__(self, window_s: float) -> None:
        self._length = ceil(window_s)
        self._buckets: deque[list[float]] = deque()  # second, TTFT sum and count, ITL sum and count
        self.ttft_s: float | None = None
        self.itl_s: float | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing to fold."""
        return not self._buckets

    def add(self, now: float, ttft_s: float, ttfts: int, itl_s: float, itls: int) -> None:
        """Count samples at `now`; the means change with the next `fold`."""
        second = floor(now)
        buckets = self._buckets
        if not buckets or buckets[-1][0] != second:
            buckets.append([second, 0.0, 0, 0.0, 0])
        bucket = buckets[-1]
        bucket[1] += ttft_s
        bucket[2] += ttfts
        bucket[3] += itl_s
        bucket[4] += itls

    def fold(self, now: float) -> None:
        """Forget what is older than the window and set the means."""
        buckets, oldest = self._buckets, floor(now) - self._length + 1
        while buckets and buckets[0][0] < oldest:
            buckets.popleft()
        ttft = ttfts = itl = itls = 0.0
        for _, a, b, c, d in buckets:
            ttft += a
            ttfts += b
            itl += c
            itls += d
        self.ttft_s = ttft / ttfts if ttfts else None
        self.itl_s = itl / itls if itls else None
