"""What a worker's endpoints do with a request, and how a worker asks its peers. Knows of Dynamo only the shapes that it needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ampd.errors import RequestError, WorkerError, WorkerGone
from ampd.messages import DecodeChunk, DecodeRequest, KvReply, KvRequest, PrefillRequest, decode, encode
from ampd.workers.decode import serve_decode
from ampd.workers.prefill import serve_prefill
from ampd.workers.worker import Worker

# A caller's departure is noticed within this, seconds.
_LOOK_S = 0.02


class Client(Protocol):
    """The part of Dynamo's client that is used here."""

    async def direct(self, request: Any, instance_id: int, annotated: bool | None = True) -> AsyncIterator[Any]:
        """Call one instance."""


class Context(Protocol):
    """The part of Dynamo's request context that is used here."""

    def is_stopped(self) -> bool:
        """Whether the caller wants no more."""

    def is_killed(self) -> bool:
        """Whether the caller is gone."""


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

    def __init__(self, worker: Worker, peers: KvPeers, departures: Departures) -> None:
        self._worker, self._peers, self._departures = worker, peers, departures

    async def prefill(self, raw: Any, context: Context) -> AsyncIterator[bytes]:
        """PrefillRequest -> PrefillResult."""
        request = decode(PrefillRequest, raw)
        with self._departures.watch(context, self._worker, request.id):
            yield encode(await serve_prefill(self._worker, self._peers, request))

    async def decode(self, raw: Any, context: Context) -> AsyncIterator[bytes]:
        """DecodeRequest -> DecodeChunk..."""
        request = decode(DecodeRequest, raw)
        with self._departures.watch(context, self._worker, request.id):
            try:
                async for chunk in serve_decode(self._worker, request):
                    yield encode(chunk)
            except RequestError as e:
                output = {"token_ids": [], "finish_reason": f"error: {e}"}
                yield encode(DecodeChunk(output=output, refused=str(e)))

    async def kv(self, raw: Any, context: Context) -> AsyncIterator[bytes]:
        """KvRequest -> KvReply."""
        yield encode(await self._worker.kv(decode(KvRequest, raw)))


class Departures:
    """Notices callers that go away: one timer looks at all requests under way.

    A task that waits for each caller would cross into Dynamo's runtime once a round, which costs more than all looks at it.
    """

    def __init__(self) -> None:
        self._present: dict[str, tuple[Context, Worker]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._cancelling: set[asyncio.Task[None]] = set()

    @contextmanager
    def watch(self, context: Context, worker: Worker, id: str) -> Iterator[None]:
        """Cancel the round when its caller goes away. Cancelled rather than torn down, so that every phase ends in its own way."""
        mine = (context, worker)
        self._present.setdefault(id, mine)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)
        try:
            yield
        finally:
            if self._present.get(id) is mine:
                del self._present[id]

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look) if self._present else None
        for id, (context, worker) in list(self._present.items()):
            if context.is_stopped() or context.is_killed():
                del self._present[id]
                task = asyncio.create_task(worker.cancel(id), name=f"cancel-{id}")
                self._cancelling.add(task)
                task.add_done_callback(self._cancelling.discard)
