"""What the Coordinator needs of the workers and of its caller; `cluster` has the one over Dynamo."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from ampd.messages import DecodeChunk, DecodeRequest, KvReply, KvRequest, PrefillRequest, PrefillResult


class Leg(Protocol):
    """One call to a worker, as its caller can stop it. Stopping ends the local stream at once; the worker ends in its own time."""

    def stop_generating(self) -> None:
        """Tell the worker that nobody waits for the answer any more. Idempotent."""


class Caller(Protocol):
    """Who waits for a round's answer."""

    def gone(self) -> bool:
        """Whether nobody waits any more. Asked often."""

    def metadata(self) -> Mapping[str, str]:
        """What the frontend hands on of the request's headers."""

    def leg(self, id: str) -> Leg:
        """A call to a worker on behalf of the caller, in the same trace, stopped by us alone."""

    def trace(self) -> dict[str, str] | None:
        """W3C trace headers of the request."""


class Workers(Protocol):
    """All workers, by instance id. Calls raise WorkerGone when the worker is not there (any more), WorkerError when it fails."""

    async def prefill(self, worker: int, request: PrefillRequest, leg: Leg) -> PrefillResult:
        """A remote prefill, on a prefill worker or on a decode worker (deflected)."""

    def decode(self, worker: int, request: DecodeRequest, leg: Leg) -> AsyncIterator[DecodeChunk]:
        """A round's decoding. The stream just ends when the leg is stopped."""

    async def kv(self, worker: int, request: KvRequest) -> KvReply:
        """A word to the holder of a pin."""
