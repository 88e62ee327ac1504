"""What a simulation tells of its course, for whoever draws it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class TimelineSink(Protocol):
    """Takes intervals as they end. Workers are numbered as in Records; the lanes are those below."""

    def span(self, worker: int, lane: str, name: str, begin_s: float, end_s: float, args: Mapping[str, int | float]) -> None:
        """`name` (session and round) kept a lane of a worker busy from `begin_s` to `end_s`."""


QUEUE, READ, PREFILL, DECODE = "queue", "read", "prefill", "decode"
