"""What a decode worker has seen of its tokens and not reported yet: TTFTs, and token gaps of the steps that are over."""

from __future__ import annotations

from ampd.simulator.cluster.times import Steps


class Meter:
    """`fresh` sequences of the run under way have no gap in its first step."""

    __slots__ = ("_fresh", "_itl_s", "_itls", "_noted", "_ttfts")

    def __init__(self) -> None:
        self._ttfts: list[tuple[int, float]] = []
        self._itl_s, self._itls = 0.0, 0
        self._noted = 0  # steps of the run that have been counted
        self._fresh = 0

    @property
    def empty(self) -> bool:
        """Whether there is nothing to report."""
        return not self._itls and not self._ttfts

    def first_token(self, worker: int, ttft_s: float) -> None:
        """A round's first token, for the worker that prefilled it."""
        self._ttfts.append((worker, ttft_s))

    def gap(self, seconds: float, count: int = 1) -> None:
        """Gaps that lie in no step: `seconds` of time in all, `count` of them."""
        self._itl_s += seconds
        self._itls += count

    def begin(self, fresh: int) -> None:
        """A run of steps begins."""
        self._noted, self._fresh = 0, fresh

    def note(self, batch: int, steps: Steps, done: int, seconds: float) -> None:
        """The first `done` steps of the run are over, which took `seconds`, for `batch` sequences."""
        if done > self._noted:
            noted = self._noted
            if noted:
                self._itl_s += batch * (seconds - steps.lasts_s(noted))
            else:
                self._itl_s += batch * seconds - self._fresh * steps.first_s
                self._itls -= self._fresh
            self._itls += batch * (done - noted)
            self._noted = done

    def paused(self, batch: int, seconds: float) -> None:
        """The run's first step came after a pause: all sequences that had a gap in it had that too."""
        self._itl_s += seconds * (batch - self._fresh)

    def take(self) -> tuple[list[tuple[int, float]], float, int]:
        """What has come up since the last call: (worker, TTFT) each; seconds and number of gaps."""
        taken = self._ttfts, self._itl_s, self._itls
        self._ttfts, self._itl_s, self._itls = [], 0.0, 0
        return taken
