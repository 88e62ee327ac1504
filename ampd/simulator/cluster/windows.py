"""A worker's TTFT and ITL windows: sums and counts by whole seconds, as ampd/state/rows.py keeps them."""

from __future__ import annotations

from collections import deque
from math import ceil, floor


class Window:
    """`ttft_s` and `itl_s` are the means as last folded; None when the window is empty."""

    __slots__ = ("_buckets", "_itl", "_itls", "_length", "_ttft", "_ttfts", "itl_s", "ttft_s")

    def __init__(self, window_s: float) -> None:
        self._length = ceil(window_s)
        self._buckets: deque[list[float]] = deque()  # second, TTFT sum and count, ITL sum and count
        self._ttft = self._itl = 0.0  # sums over all buckets, as the next two
        self._ttfts = self._itls = 0
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
        if ttfts:
            bucket[1] += ttft_s
            bucket[2] += ttfts
            self._ttft += ttft_s
            self._ttfts += ttfts
        if itls:
            bucket[3] += itl_s
            bucket[4] += itls
            self._itl += itl_s
            self._itls += itls

    def fold(self, now: float) -> None:
        """Forget what is older than the window and set the means."""
        buckets, oldest = self._buckets, floor(now) - self._length + 1
        while buckets and buckets[0][0] < oldest:
            _, ttft, ttfts, itl, itls = buckets.popleft()
            self._ttft -= ttft
            self._ttfts -= int(ttfts)
            self._itl -= itl
            self._itls -= int(itls)
        self.ttft_s = self._ttft / self._ttfts if self._ttfts else None
        self.itl_s = self._itl / self._itls if self._itls else None
        if not buckets:
            self._ttft = self._itl = 0.0  # rounding ends here
