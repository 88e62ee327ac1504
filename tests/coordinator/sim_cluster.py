"""All workers of a graph in this process, as the Coordinator's `Workers`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Literal

from sim_caller import SimLeg
from sim_worker import SimWorker

from ampd.errors import AmpdError, RoundCancelled, StateError, WorkerError, WorkerGone
from ampd.messages import DecodeChunk, DecodeRequest, KvReply, KvRequest, PrefillRequest, PrefillResult, decode, encode
from ampd.state.base import StateStore, WorkerRow


class SimCluster:
    """All workers of a graph, as the Coordinator's `Workers`. Messages make the same trip through `encode` as over Dynamo."""

    def __init__(self, store: StateStore) -> None:
        self.store = store
        self.workers: dict[int, SimWorker] = {}
        self.issued = 0
        self.tasks: set[asyncio.Task[None]] = set()

    async def add(self, id: int, role: Literal["prefill", "decode"], kv_free: int = 100_000) -> SimWorker:
        """A new live worker."""
        worker = self.workers[id] = SimWorker(self, id, role)
        await self.report(worker, kv_free=kv_free)
        return worker

    async def report(self, worker: SimWorker, **fields: Any) -> None:
        """A heartbeat."""
        row = {"id": worker.id, "role": worker.role, "epoch": worker.epoch, "theta": 1, "kv_total": 100_000, "kv_free": 100_000}
        await self.store.put_worker(WorkerRow(**{**row, **fields}))

    async def departed(self, worker: int, task: str) -> None:
        """A task left its queue; the store may be away."""
        with contextlib.suppress(StateError):
            await self.store.dequeue(worker, task)

    async def audit(self) -> None:
        """What workers do every few heartbeats: take out of the mirror what has overtaken its own departure. Nothing waits now."""
        for id in self.workers:
            for entry in await self.store.queue(id):
                await self.store.dequeue(id, entry.id)

    def live(self, id: int) -> SimWorker:
        """The worker of that id. Raises WorkerGone."""
        worker = self.workers.get(id)
        if worker is None or worker.dead:
            raise WorkerGone(f"worker {id}: Unavailable")
        return worker

    async def kv(self, worker: int, request: KvRequest) -> KvReply:
        await asyncio.sleep(0)
        return self.live(worker).kv_call(decode(KvRequest, encode(request)))

    async def prefill(self, worker: int, request: PrefillRequest, leg: SimLeg) -> PrefillResult:
        holder = self.live(worker)
        heard = decode(PrefillRequest, encode(request))

        async def work(emit: Callable[[Any], None]) -> None:
            emit(await holder.prefill(heard, leg))

        async for message in self._stream(leg, work):
            return decode(PrefillResult, encode(message))
        raise WorkerError("the stream ended without a result")

    async def decode(self, worker: int, request: DecodeRequest, leg: SimLeg) -> AsyncIterator[DecodeChunk]:
        holder = self.live(worker)
        heard = decode(DecodeRequest, encode(request))
        async for message in self._stream(leg, lambda emit: holder.decode(heard, leg, emit)):
            yield decode(DecodeChunk, encode(message))

    async def _stream(self, leg: SimLeg, work: Callable[[Callable[[Any], None]], Coroutine[Any, Any, None]]) -> AsyncIterator[Any]:
        """What the worker's own task emits. Like Dynamo's, it ends at once when the leg is stopped, and the task goes on."""
        queue: asyncio.Queue[Any] = asyncio.Queue()

        async def run() -> None:
            try:
                await work(queue.put_nowait)
                queue.put_nowait(None)
            except RoundCancelled as e:
                queue.put_nowait(WorkerError(f"Internal: RoundCancelled: {e}"))
            except AmpdError as e:
                queue.put_nowait(e)

        task = asyncio.create_task(run())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        stopped = asyncio.create_task(leg.stopped.wait())
        try:
            while True:
                item = asyncio.create_task(queue.get())
                await asyncio.wait({item, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if stopped.done():
                    item.cancel()
                    return
                message = item.result()
                if message is None:
                    return
                if isinstance(message, Exception):
                    raise message
                yield message
        finally:
            stopped.cancel()

    async def quiet(self) -> None:
        """Wait until no worker has anything to do."""
        while self.tasks:
            await asyncio.wait(set(self.tasks))

    def pins(self) -> set[str]:
        """References of all pins on live workers, once the graces of released ones have passed."""
        live = [w for w in self.workers.values() if not w.dead]
        for worker in live:
            worker.end_graces()
        return {pin.handle.ref for worker in live for pin in worker.pins._pins.values()}
