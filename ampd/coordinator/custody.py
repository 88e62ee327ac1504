"""Which KV handles a round answers for, and what becomes of each when the round ends, however it ends.

A handle is single-use: exactly one of used, put back for the next round, released, or lost with its worker.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ampd.messages import Handle, Path


class _With(Enum):
    """Who may act on the session's older handle now."""

    COORDINATOR = "coordinator"  # nobody else knows it
    PREFILL = "prefill"  # a prefill worker may have claimed it
    LOCAL = "local"  # the decode worker releases it if it keeps the session's KV anew
    REMOTE = "remote"  # the decode worker releases it at dispatch


@dataclass(slots=True)
class Owed:
    """What is left to do with a round's handles. `release_later`: a transfer may still be under way."""

    put_back: Handle | None = None
    release: list[Handle] = field(default_factory=list)
    release_later: list[Handle] = field(default_factory=list)


class Custody:
    """The handles of one round: the session's history on the decode worker, and the prompt's KV on a prefill worker."""

    def __init__(self, history: Handle | None) -> None:
        self.history = history
        self._disowned: list[Handle] = []
        self.prefilled: Handle | None = None
        self._with = _With.COORDINATOR
        self._reading = False

    def disown(self, handle: Handle | None) -> None:
        """Take a handle that nobody can use: it is on a worker that the session has left."""
        if handle is not None:
            self._disowned.append(handle)

    def lend_to_prefill(self) -> None:
        """The history goes out with a remote prefill."""
        if self.history is not None:
            self._with = _With.PREFILL

    def lend_to_decode(self, path: Path) -> None:
        """Both handles go out with the decode request."""
        self._with = _With.LOCAL if path == "local" else _With.REMOTE
        self._reading = self.prefilled is not None

    def first_token(self) -> Handle | None:
        """The decode worker has read the prompt's KV. Returns the prefill worker's handle, to be released."""
        handle, self.prefilled = self.prefilled, None
        return handle

    def served(self, kept: bool) -> None:
        """The round ended well. The decode worker has released the history, unless it ran locally and kept nothing anew."""
        if self._with is _With.REMOTE or (self._with is _With.LOCAL and kept):
            self.history = None

    def decode_gone(self) -> None:
        """The decode worker has left: it reads nothing any more. Its own pins are released like any, should it be back."""
        self._reading = False

    def settle(self) -> Owed:
        """End the custody: every handle still held is owed something, once."""
        owed = Owed(release=self._disowned)
        if self.prefilled is not None:
            (owed.release_later if self._reading else owed.release).append(self.prefilled)
        if self.history is not None:
            if self._with in (_With.COORDINATOR, _With.LOCAL):
                owed.put_back = self.history
            else:
                owed.release.append(self.history)  # idempotent; a claimed pin outlives it by the worker's grace
        self.history = self.prefilled = None
        self._disowned = []
        self._reading, self._with = False, _With.COORDINATOR
        return owed
