"""An engine whose every step the test decides: for moments that a real engine passes too quickly to be met."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence

from ampd.workers.engines.base import EngineInfo, EngineJob, EngineLoad, EngineOutput, KvFacts

BLOCK = 4
_refs = itertools.count()


class ScriptedEngine:
    """Jobs wait at `gate`, then emit their tokens. Pins are names in `pinned`; `used` is what `load` reports."""

    def __init__(self, kv_total: int = 1000) -> None:
        self.info = EngineInfo("scripted", "0", "m", BLOCK, kv_total, 4096, 1, 1)
        self.used = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.jobs: list[EngineJob] = []
        self.live: dict[str, asyncio.Event] = {}  # job id: aborted
        self.aborts: list[str] = []
        self.pinned: set[str] = set()
        self.released: list[str] = []

    async def start(self) -> None:
        return None

    async def generate(self, job: EngineJob) -> AsyncIterator[EngineOutput]:
        self.jobs.append(job)
        aborted = self.live[job.id] = asyncio.Event()
        try:
            waits = [asyncio.ensure_future(e.wait()) for e in (self.gate, aborted)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if aborted.is_set():
                yield EngineOutput(output={"token_ids": [], "finish_reason": "cancelled"}, tokens=0, finished=True)
                return
            tokens = 1 if job.kind == "prefill" else 3
            for i in range(tokens - 1):
                yield EngineOutput(output={"token_ids": [50 + i], "index": 0}, tokens=1)
            yield self._last(job, tokens)
        finally:
            del self.live[job.id]

    def _last(self, job: EngineJob, tokens: int) -> EngineOutput:
        ref = f"pin-{next(_refs)}" if job.pin else None
        if ref is not None:
            self.pinned.add(ref)
        held = len(job.token_ids) + (0 if job.kind == "prefill" else tokens - 1)
        return EngineOutput(
            output={"token_ids": [49 + tokens], "index": 0, "finish_reason": "length"},
            tokens=1,
            finished=True,
            kv=KvFacts(read_tokens=job.source_tokens),
            ref=ref,
            params={"ref": ref} if ref is not None else None,
            pinned_tokens=held if ref is not None else 0,
            expires_at=time.time() + 1000,
        )

    async def abort(self, job_id: str) -> None:
        self.aborts.append(job_id)
        if job_id in self.live:
            self.live[job_id].set()

    async def finish(self, job_id: str) -> None:
        await self.abort(job_id)

    async def release(self, refs: Sequence[str]) -> None:
        self.released += refs
        self.pinned -= set(refs)

    def load(self) -> EngineLoad:
        return EngineLoad(kv_used=self.used)

    async def reset_prefix_cache(self) -> None:
        return None

    async def wait_dead(self) -> None:
        await asyncio.Event().wait()

    async def stop(self) -> None:
        return None
