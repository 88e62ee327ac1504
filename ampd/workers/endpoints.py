"""What a worker's endpoints do with a request, and how a worker asks its peers. Knows of Dynamo only the shapes that it needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from ampd.errors import RequestError, WorkerError, WorkerGone
from ampd.messages import DecodeChunk, DecodeRequest, KvReply, KvRequest, PrefillRequest, decode, encode
from ampd.workers.decode import serve_decode
from ampd.workers.prefill import serve_prefill
from ampd.workers.worker import Worker


class Client(Protocol):
    """The part of Dynamo's client that is used here."""

    async def direct(self, request: Any, instance_id: int, annotated: bool | None = True) -> AsyncIterator[Any]:
        """Call one instance."""


class Context(Protocol):
    """The part of Dynamo's request context that is used here."""

    async def async_killed_or_stopped(self) -> Any:
        """Return when the caller is gone."""


class KvPeers:
    """The `kv` endpoint of the decode workers, over Dynamo."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client, self._timeout_s = client, timeout_s

    async def kv(self, request: KvRequest) -> KvReply:
        """Raises WorkerError when the worker is gone or does not answer in time."""
        if request.handle is None:
            raise WorkerError("a kv request between workers needs a handle")
        holder = request.handle.worker
        try:
            async with asyncio.timeout(self._timeout_s):
                async for reply in await self._client.direct(encode(request), holder, annotated=False):
                    return decode(KvReply, reply)
        except TimeoutError:
            raise WorkerError(f"worker {holder} did not answer within {self._timeout_s} s") from None
        except Exception as e:  # Dynamo raises bare Exception for an instance that is gone
            raise WorkerGone(f"worker {holder}: {e}") from e
        raise WorkerError(f"worker {holder} gave no answer")


class Endpoints:
    """Handlers: one message in, messages out. Errors that the peer should tell apart travel as messages."""

    def __init__(self, worker: Worker, peers: KvPeers) -> None:
        self._worker, self._peers = worker, peers

    async def prefill(self, raw: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        """PrefillRequest -> PrefillResult."""
        request = decode(PrefillRequest, raw)
        async with _stop_with(context, self._worker, request.id):
            yield encode(await serve_prefill(self._worker, self._peers, request))

    async def decode(self, raw: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        """DecodeRequest -> DecodeChunk..."""
        request = decode(DecodeRequest, raw)
        async with _stop_with(context, self._worker, request.id):
            try:
                async for chunk in serve_decode(self._worker, request):
                    yield encode(chunk)
            except RequestError as e:
                output = {"token_ids": [], "finish_reason": f"error: {e}"}
                yield encode(DecodeChunk(output=output, refused=str(e)))

    async def kv(self, raw: dict[str, Any], context: Context) -> AsyncIterator[dict[str, Any]]:
        """KvRequest -> KvReply."""
        yield encode(await self._worker.kv(decode(KvRequest, raw)))


@asynccontextmanager
async def _stop_with(context: Context, worker: Worker, id: str) -> AsyncIterator[None]:
    """Cancel the round when its client goes away. Cancelled rather than torn down, so that every phase ends in its own way."""

    async def watch() -> None:
        await context.async_killed_or_stopped()
        await worker.cancel(id)

    watcher = asyncio.create_task(watch(), name=f"watch-{id}")
    try:
        yield
    finally:
        watcher.cancel()
