"""A client that can hang up, and its calls to workers."""

from __future__ import annotations

import asyncio


class SimLeg:
    """One call to a worker."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()

    def stop_generating(self) -> None:
        self.stopped.set()


class SimCaller:
    """A client that can hang up."""

    def __init__(self, metadata: dict[str, str] | None = None) -> None:
        self._gone = asyncio.Event()
        self._metadata = metadata or {}
        self.legs: list[SimLeg] = []

    def hang_up(self) -> None:
        self._gone.set()

    def gone(self) -> bool:
        return self._gone.is_set()

    def metadata(self) -> dict[str, str]:
        return self._metadata

    def leg(self, id: str) -> SimLeg:
        self.legs.append(SimLeg())
        return self.legs[-1]

    def trace(self) -> dict[str, str] | None:
        return None
