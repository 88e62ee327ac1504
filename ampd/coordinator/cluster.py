"""The workers over Dynamo's request plane. Turns what its clients raise into ampd's errors.

Dynamo's Python client raises plain exceptions: `Unavailable: ...` for an instance that is unknown, refuses the connection or breaks
the stream, `DeadlineExceeded: ...`, `Internal: Type: message` for an error in the worker's handler.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ampd.coordinator.workers import Leg
from ampd.errors import AmpdError, WorkerError, WorkerGone
from ampd.messages import DecodeChunk, DecodeRequest, KvReply, KvRequest, PrefillRequest, PrefillResult, decode, encode


class Client(Protocol):
    """The part of Dynamo's client that is used here."""

    def instance_ids(self) -> list[int]:
        """Instances that discovery lists."""

    async def direct(
        self, request: Any, instance_id: int, annotated: bool | None = True, context: Any = None
    ) -> AsyncIterator[Any]:
        """Call one instance."""


class DynamoWorkers:
    """Workers by instance id. Discovery says which role an id has; `deflect` is the decode workers' endpoint for prefills."""

    def __init__(
        self, prefill: Client, decode: Client, deflect: Client, prefill_kv: Client, decode_kv: Client, kv_timeout_s: float
    ) -> None:
        self._prefill, self._decode, self._deflect = prefill, decode, deflect
        self._kv = (decode_kv, prefill_kv)
        self._kv_timeout_s = kv_timeout_s

    async def prefill(self, worker: int, request: PrefillRequest, leg: Leg) -> PrefillResult:
        """See Workers. Decode workers serve the prefills of others at an endpoint of their own."""
        client = self._prefill if worker in self._prefill.instance_ids() else self._deflect
        with _mapped(worker):
            async for raw in await client.direct(encode(request), worker, annotated=False, context=leg):
                return decode(PrefillResult, raw)
        raise WorkerError(f"worker {worker} ended prefill {request.id} without a result")

    async def decode(self, worker: int, request: DecodeRequest, leg: Leg) -> AsyncIterator[DecodeChunk]:
        """See Workers."""
        with _mapped(worker):
            stream = await self._decode.direct(encode(request), worker, annotated=False, context=leg)
        chunks = aiter(stream)
        while True:
            with _mapped(worker):
                raw = await anext(chunks, None)
            if raw is None:
                return
            chunk = decode(DecodeChunk, raw)
            yield chunk
            if chunk.stats is not None or chunk.refused is not None:
                return  # the last one: the stream's own end, one more turn of the loop, says nothing new

    async def kv(self, worker: int, request: KvRequest) -> KvReply:
        """See Workers. Bounded in time."""
        for client in self._kv:
            if worker in client.instance_ids():
                return await self._ask(client, worker, request)
        raise WorkerGone(f"worker {worker} is not there any more")

    async def _ask(self, client: Client, worker: int, request: KvRequest) -> KvReply:
        with _mapped(worker):
            async with asyncio.timeout(self._kv_timeout_s):
                async for raw in await client.direct(encode(request), worker, annotated=False):
                    return decode(KvReply, raw)
        raise WorkerError(f"worker {worker} gave no answer")


@contextmanager
def _mapped(worker: int) -> Iterator[None]:
    try:
        yield
    except AmpdError:
        raise
    except TimeoutError:
        raise WorkerError(f"worker {worker} did not answer in time") from None
    except Exception as e:  # Dynamo's client has no narrower class
        kind = WorkerGone if str(e).startswith("Unavailable") else WorkerError
        raise kind(f"worker {worker}: {e}") from e
