"""One job in the engine, from submission to a known end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from ampd.errors import AmpdError
from ampd.workers.engines.base import Engine, EngineJob, EngineOutput

log = logging.getLogger(__name__)

# An aborted job ends within an engine step; past this the engine's own lease is what ends its pin.
_ABORT_WAIT_S = 10.0


class EngineRun:
    """The outputs of one job, for the length of an `async with` block: however that ends, the job has ended by then and holds
    nothing that its outputs did not hand over.

    Pumped by a task of its own, so that cancelling the reader never loses an output and its pin.
    """

    def __init__(self, engine: Engine, job: EngineJob) -> None:
        self._engine, self._job = engine, job
        self._outputs: asyncio.Queue[EngineOutput | AmpdError | None] = asyncio.Queue()
        self._pump = asyncio.create_task(self._run(), name=f"engine-{job.id}")
        self._finished = False

    async def __aenter__(self) -> EngineRun:
        return self

    async def __aexit__(self, *error: object) -> None:
        if not self._finished:  # else its last output has been handed over, and nothing comes after that
            await asyncio.shield(self._end())

    async def _run(self) -> None:
        try:
            async for output in self._engine.generate(self._job):
                self._outputs.put_nowait(output)
        except AmpdError as e:
            self._outputs.put_nowait(e)
        finally:
            self._outputs.put_nowait(None)

    async def outputs(self) -> AsyncIterator[EngineOutput]:
        """Outputs as they come. Raises what the engine raised."""
        while (item := await self._outputs.get()) is not None:
            if isinstance(item, AmpdError):
                raise item
            self._finished = self._finished or item.finished
            yield item

    async def _end(self) -> None:
        """Stop the job if it still runs, and release a pin that nobody took."""
        if not self._pump.done():
            await self._engine.abort(self._job.id)
            _, pending = await asyncio.wait({self._pump}, timeout=_ABORT_WAIT_S)
            if pending:
                log.error("job %s did not end within %.0f s of its abort", self._job.id, _ABORT_WAIT_S)
                self._pump.cancel()
        orphans = []
        while not self._outputs.empty():
            item = self._outputs.get_nowait()
            if isinstance(item, EngineOutput) and item.ref is not None:
                orphans.append(item.ref)
        if orphans:
            await self._engine.release(orphans)
