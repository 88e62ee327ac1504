"""KV that a worker keeps for somebody: a session's between its rounds, a prefill's result until its decode worker has read it.

The rules are those of ampd/workers/pins.py and `Worker.make_room`: pins end by use, by expiry, or, when room is needed, the
oldest first; one that is being read is safe. Under Continuum the program that arrived last gives way first (arXiv 2511.02230).
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import inf

from ampd.simulator.cluster.pool import Entry, Pool


class Pin:
    """`number` tells it from later pins of the same session."""

    __slots__ = ("claimed", "entry", "number", "tokens")

    def __init__(self, entry: Entry, tokens: int, number: int) -> None:
        self.entry = entry
        self.tokens = tokens
        self.number = number
        self.claimed = False


class Pins:
    """All pins of a worker, oldest first. `tokens`: KV held by them."""

    __slots__ = ("_claimed", "_count", "_ends", "_latest_first", "_pins", "_pool", "shed_pins", "tokens")

    def __init__(self, pool: Pool, latest_first: bool = False) -> None:
        self._pool, self._latest_first = pool, latest_first
        self._pins: dict[int, Pin] = {}
        self._ends: list[tuple[float, int, int]] = []
        self._count = self._claimed = 0
        self.tokens = 0
        self.shed_pins = 0

    def __len__(self) -> int:
        return len(self._pins)

    @property
    def free(self) -> int:
        """Pins that could be given up."""
        return len(self._pins) - self._claimed

    def pin(self, entry: Entry, tokens: int, expires_at: float) -> None:
        """Keep the first `tokens` tokens of an entry in use."""
        pool = self._pool
        blocks = -(-tokens // pool.size)
        pool.used -= entry.blocks - blocks
        entry.blocks = blocks
        entry.tokens = tokens // pool.size * pool.size
        self._count += 1
        self._pins[entry.session] = Pin(entry, tokens, self._count)
        self.tokens += tokens
        if expires_at < inf:
            heappush(self._ends, (expires_at, entry.session, self._count))

    def claim(self, session: int) -> bool:
        """Protect a pin while it is read; False when there is none."""
        pin = self._pins.get(session)
        if pin is None:
            return False
        if not pin.claimed:
            pin.claimed = True
            self._claimed += 1
        return True

    def hold(self, session: int) -> bool:
        """A pin expires no more, since its session's next round waits to be admitted; False when there is none."""
        pin = self._pins.get(session)
        if pin is None:
            return False
        self._count += 1
        pin.number = self._count
        return True

    def keep(self, session: int) -> None:
        """Protect what is merely cached, for a read; the entry must be there."""
        tokens = self._pool.held(session)
        self.pin(self._pool.take(session, tokens, tokens), tokens, inf)
        self.claim(session)

    def use(self, session: int) -> None:
        """The pin passes to a job, which keeps its entry in use."""
        self._pop(session)

    def drop(self, session: int) -> None:
        """End a pin, if there is one; what it held stays cached."""
        pin = self._pop(session)
        if pin is not None:
            self._pool.rest(pin.entry, min(pin.tokens, pin.entry.blocks * self._pool.size))

    def _pop(self, session: int) -> Pin | None:
        pin = self._pins.pop(session, None)
        if pin is not None:
            self.tokens -= pin.tokens
            self._claimed -= pin.claimed
        return pin

    def sweep(self, now: float) -> None:
        """End what has expired, unless it is being read."""
        ends = self._ends
        while ends and ends[0][0] <= now:
            _, session, number = heappop(ends)
            pin = self._pins.get(session)
            if pin is not None and pin.number == number and not pin.claimed:
                self.drop(session)

    def next_expiry(self) -> float:
        """When the next pin may expire; infinite when none will."""
        return self._ends[0][0] if self._ends else inf

    def shed(self, blocks: int, keep: int) -> None:
        """End pins until `blocks` blocks are given up, or none is left; never that of session `keep`, or one that is being read."""
        order = sorted(self._pins, reverse=True) if self._latest_first else list(self._pins)
        for session in order:
            if blocks <= 0:
                return
            pin = self._pins[session]
            if not pin.claimed and session != keep:
                blocks -= pin.entry.blocks
                self.shed_pins += 1
                self.drop(session)
