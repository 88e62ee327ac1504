"""What happened to the KV of each request, noted on the scheduler's side of the connector."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from ampd.workers.engines.base import KvFacts

# Of one read in the average that corrects the expected times.
_WEIGHT = 0.2


class FactBook:
    """Facts by request id, from its first look-up in the prefix cache to its end. `clock` gives unix seconds; `read_s` how long a
    read of so many tokens is expected to take, which the reads that end correct.

    A preempted request is looked up and computed again: what it was first given is what is reported.
    """

    def __init__(self, clock: Callable[[], float], read_s: Callable[[int], float] = lambda tokens: 0.0) -> None:
        self._clock, self._read_s = clock, read_s
        self._facts: dict[str, KvFacts] = {}
        self._reading: set[str] = set()
        self._slower = 1.0  # reads measured over expected

    def __len__(self) -> int:
        return len(self._facts)

    def looked_up(self, request_id: str, cached_tokens: int) -> None:
        """The local prefix cache holds `cached_tokens` leading tokens."""
        facts = self._facts.get(request_id, KvFacts())
        if facts.read_started_at is None and facts.compute_started_at is None:
            self._facts[request_id] = replace(facts, cached_tokens=cached_tokens)

    def reading(self, request_id: str, tokens: int) -> None:
        """The remote KV of `tokens` tokens is being read."""
        facts = self._facts.get(request_id, KvFacts())
        self._facts[request_id] = replace(facts, read_tokens=tokens, read_started_at=self._clock())
        self._reading.add(request_id)

    def received(self, request_ids: Iterable[str], failed: Iterable[str]) -> None:
        """Reads have ended; those in `failed` without their KV."""
        lost = set(failed)
        for request_id in request_ids:
            facts = self._facts.get(request_id)
            if facts is None or facts.read_started_at is None or facts.read_ended_at is not None:
                continue
            now = self._clock()
            facts = replace(facts, read_ended_at=now, read_s=now - facts.read_started_at)
            self._reading.discard(request_id)
            if request_id in lost:
                facts = replace(facts, read_tokens=0, read_failed=True)
            elif (expected := self._read_s(facts.read_tokens)) > 0:
                self._slower += _WEIGHT * (facts.read_s / expected - self._slower)
            self._facts[request_id] = facts

    def computing(self, request_ids: Iterable[str]) -> None:
        """Requests are part of the coming step."""
        for request_id in request_ids:
            facts = self._facts.get(request_id)
            if facts is not None and facts.compute_started_at is None:
                self._facts[request_id] = replace(facts, compute_started_at=self._clock())

    def link_s(self) -> float:
        """Expected seconds until the reads under way have ended; they share one link, at work since the first of them began.

        A link that is late, by a slow or a stuck peer, is expected to need as long again as it is late.
        """
        if not self._reading:
            return 0.0
        facts = [self._facts[request_id] for request_id in self._reading]
        began = min(f.read_started_at for f in facts if f.read_started_at is not None)
        return abs(self._slower * sum(self._read_s(f.read_tokens) for f in facts) - (self._clock() - began))

    def take(self, request_id: str) -> KvFacts:
        """The request has ended."""
        self._reading.discard(request_id)
        return self._facts.pop(request_id, KvFacts())
