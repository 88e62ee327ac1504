"""KV transfers. Each worker has one link, shared fairly by the transfers under way at it, in whichever direction.

A transfer is T_kv seconds of work for both of its ends, and proceeds at the least share that either end gives it (processor
sharing): alone it takes T_kv, beside n - 1 others at one end n times as long.
"""

from __future__ import annotations

from typing import Any

from ampd.simulator.cluster.loop import Handler, Loop


class Transfer:
    """`left` seconds of work at time `since`, done at `rate` since then. `number` tells its valid end event from older ones."""

    __slots__ = ("argument", "began", "done", "dst", "left", "number", "rate", "since", "src")

    def __init__(self, src: int, dst: int, seconds: float, now: float, done: Handler, argument: Any) -> None:
        self.src, self.dst, self.left, self.done, self.argument = src, dst, seconds, done, argument
        self.began = self.since = now
        self.rate = 0.0
        self.number = 0


class Network:
    """All links, by worker id."""

    __slots__ = ("_links", "_loop")

    def __init__(self, loop: Loop, workers: int) -> None:
        self._loop = loop
        self._links: list[list[Transfer]] = [[] for _ in range(workers)]

    def start(self, now: float, src: int, dst: int, seconds: float, done: Handler, argument: Any) -> None:
        """Begin a transfer; `done(time, (argument, seconds it took))` is called at its end."""
        transfer = Transfer(src, dst, seconds, now, done, argument)
        self._links[src].append(transfer)
        self._links[dst].append(transfer)
        self._share(now, src, dst)

    def owed_s(self, worker: int, now: float) -> float:
        """Seconds of work that a worker's link still owes."""
        owed = 0.0
        for t in self._links[worker]:
            owed += t.left - t.rate * (now - t.since)
        return owed

    def busy(self, worker: int) -> bool:
        """Whether a transfer is under way there."""
        return bool(self._links[worker])

    def _share(self, now: float, src: int, dst: int) -> None:
        """The transfers at two links have changed: set all rates there anew."""
        links = self._links
        at_src, at_dst = links[src], links[dst]
        for t in at_src:
            self._set(now, t, 1 / max(len(links[t.src]), len(links[t.dst])))
        for t in at_dst:
            if t.src != src and t.dst != src:
                self._set(now, t, 1 / max(len(links[t.src]), len(links[t.dst])))

    def _set(self, now: float, transfer: Transfer, rate: float) -> None:
        if transfer.rate == rate:
            return
        left = transfer.left - transfer.rate * (now - transfer.since)
        transfer.left = left if left > 0.0 else 0.0
        transfer.since, transfer.rate = now, rate
        transfer.number += 1
        self._loop.at(now + transfer.left / rate, self._end, (transfer, transfer.number))

    def _end(self, now: float, event: tuple[Transfer, int]) -> None:
        transfer, number = event
        if transfer.number != number:
            return
        self._links[transfer.src].remove(transfer)
        self._links[transfer.dst].remove(transfer)
        self._share(now, transfer.src, transfer.dst)
        transfer.done(now, (transfer.argument, now - transfer.began))
