"""The pins a worker holds: who may read them, once, and until when.

The engine keeps the blocks; this table keeps the right to them. A handle that does not match its pin in every field is refused,
and whoever holds it recomputes (a stale read would be served as HTTP 200 with another prompt's KV, vllm#52234).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ampd.errors import KvFenceError
from ampd.ledger import chain_at
from ampd.messages import Handle, pack_params


@dataclass(slots=True)
class Pin:
    """One pinned sequence. `ledger` holds its chain of block hashes."""

    handle: Handle
    round_id: str
    ledger: bytes
    block_size: int
    claimed_at: float | None = None

    def check(self, handle: Handle, now: float) -> None:
        """Raises KvFenceError when `handle` is not this pin's, or too old."""
        mine = self.handle
        if handle.epoch != mine.epoch or handle.worker != mine.worker:
            raise KvFenceError("epoch")
        if handle.session != mine.session:
            raise KvFenceError("session")
        if handle.chain != mine.chain or handle.tokens != mine.tokens:
            raise KvFenceError("prefix")
        if now >= mine.expires_at:
            raise KvFenceError("expired")

    def check_prefix(self, tokens: int, chain: str) -> None:
        """Raises KvFenceError when the pin's first `tokens` tokens are not those that `chain` stands for."""
        if tokens > self.handle.tokens or chain_at(self.ledger, tokens, self.block_size) != chain:
            raise KvFenceError("prefix")


class PinTable:
    """All pins of one worker epoch, oldest first."""

    def __init__(self, worker: int, epoch: str, block_size: int, clock: Callable[[], float]) -> None:
        self._worker, self._epoch, self._block_size, self._clock = worker, epoch, block_size, clock
        self._pins: dict[str, Pin] = {}
        self.issued = 0
        self.ended: Counter[str] = Counter()  # by "released", "read", "expired" or "shed"

    def __len__(self) -> int:
        return len(self._pins)

    @property
    def tokens(self) -> int:
        """Tokens of KV held for handles."""
        return sum(pin.handle.tokens for pin in self._pins.values())

    def issue(
        self, round_id: str, session: str, ref: str, tokens: int, ledger: bytes, expires_at: float, params: dict[str, Any]
    ) -> Handle:
        """Record the pin that a round leaves and make the handle to it."""
        chain = chain_at(ledger, tokens, self._block_size)
        handle = Handle(self._worker, self._epoch, session, ref, tokens, chain, expires_at, pack_params(params))
        self._pins[ref] = Pin(handle, round_id, ledger, self._block_size)
        self.issued += 1
        return handle

    def of_round(self, round_id: str) -> Handle | None:
        """The handle to the pin that a round left, if it still stands."""
        return next((pin.handle for pin in self._pins.values() if pin.round_id == round_id), None)

    def of_session(self, session: str) -> Pin | None:
        """The session's latest pin that nobody has claimed and that has not expired."""
        now = self._clock()
        free = (p for p in reversed(self._pins.values()) if p.handle.session == session and p.claimed_at is None)
        return next((pin for pin in free if now < pin.handle.expires_at), None)

    def claim(self, handle: Handle | None, tokens: int, chain: str) -> None:
        """Give the right to read, once. Raises KvFenceError."""
        pin = self._checked(handle)
        pin.check_prefix(tokens, chain)
        pin.claimed_at = self._clock()

    def check_local(self, handle: Handle, tokens: int, ledger: bytes) -> None:
        """Check that a local round may count on the first `tokens` tokens. Raises KvFenceError; claims nothing."""
        self._checked(handle).check_prefix(tokens, chain_at(ledger, tokens, self._block_size))

    def _checked(self, handle: Handle | None) -> Pin:
        if handle is None:
            raise KvFenceError("unknown")
        if handle.epoch != self._epoch:
            raise KvFenceError("epoch")
        pin = self._pins.get(handle.ref)
        if pin is None:
            raise KvFenceError("unknown")
        pin.check(handle, self._clock())
        if pin.claimed_at is not None:
            raise KvFenceError("claimed")
        return pin

    def drop(self, handle: Handle) -> bool:
        """Forget a pin whose reading is over. False when it is not (any more) this table's: nothing to release then."""
        pin = self._pins.get(handle.ref)
        if pin is None or handle.epoch != self._epoch or handle.session != pin.handle.session:
            return False
        self._forget([handle.ref], "released" if pin.claimed_at is None else "read")
        return True

    def is_claimed(self, handle: Handle) -> bool:
        """Whether somebody may be reading the pin now."""
        pin = self._pins.get(handle.ref)
        return pin is not None and pin.claimed_at is not None

    def sweep(self, grace_s: float) -> list[str]:
        """Forget pins that have expired or whose claim is older than `grace_s`; returns the refs to release."""
        now = self._clock()
        read = [ref for ref, pin in self._pins.items() if pin.claimed_at is not None and now - pin.claimed_at >= grace_s]
        ended = self._forget(read, "read")
        return ended + self._forget([ref for ref, pin in self._pins.items() if now >= pin.handle.expires_at], "expired")

    def shed(self, tokens: int, keep: str | None = None) -> list[str]:
        """Forget the oldest unclaimed pins until `tokens` tokens are given up; returns the refs to release.

        `keep` is the session that needs the room: its own history is the last thing to drop.
        """
        refs, given = [], 0
        for ref, pin in self._pins.items():
            if given >= tokens:
                break
            if pin.claimed_at is None and pin.handle.session != keep:
                refs.append(ref)
                given += pin.handle.tokens
        return self._forget(refs, "shed")

    def _forget(self, refs: list[str], why: str) -> list[str]:
        for ref in refs:
            del self._pins[ref]
        self.ended[why] += len(refs)
        return refs
