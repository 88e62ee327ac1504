"""TTFT and ITL of one round, measured where its tokens leave: the one definition that windows, metrics and answers use."""

from __future__ import annotations


class RoundMeter:
    """Feed it each output's time and token count. Times on one clock; `arrived_at` is when the round reached the Coordinator."""

    def __init__(self, arrived_at: float) -> None:
        self._arrived_at = arrived_at
        self._first: float | None = None
        self._last = 0.0
        self.tokens = 0

    def add(self, now: float, tokens: int) -> tuple[float, int] | None:
        """Count `tokens` leaving at `now`. Returns (seconds, gaps) since the tokens before, None for the first ones."""
        if tokens == 0:
            return None
        if self._first is None:
            self._first = self._last = now
            self.tokens = tokens
            return None
        seconds, self._last = now - self._last, now
        self.tokens += tokens
        return seconds, tokens

    @property
    def ttft_s(self) -> float:
        """From arrival to the first token; 0.0 when there was none."""
        return 0.0 if self._first is None else self._first - self._arrived_at

    @property
    def itl_s(self) -> float:
        """Mean gap between tokens; 0.0 with fewer than two."""
        if self._first is None or self.tokens < 2:
            return 0.0
        return (self._last - self._first) / (self.tokens - 1)
