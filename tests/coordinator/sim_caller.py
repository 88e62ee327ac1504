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

    def __init__(self) -> None:
        self._gone = asyncio.Event()
        self.legs: list[SimLeg] = []

    def hang_up(self) -> None:
        self._gone.set()

    def gone(self) -> bool:
        return self._gone.is_set()

    async def wait_gone(self) -> None:
        await self._gone.wait()

    def leg(self, id: str) -> SimLeg:
        self.legs.append(SimLeg())
        return self.legs[-1]

    def trace(self) -> dict[str, str] | None:
        return None
