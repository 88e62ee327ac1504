"""The reading side of a simulated KV transfer: what a job reads of its source, and how long that takes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from ampd.config import Graph, Worker
from ampd.errors import WorkerError
from ampd.policy.types import CostModel
from ampd.workers.engines.sim_job import SimJob
from ampd.workers.engines.sim_link import Fabric, Lent, Link, Read
from ampd.workers.engines.transfers import TransferTotals

log = logging.getLogger(__name__)

# What a source's parameters must hold to be read; without the first four its pin cannot even be ended.
_ADDRESS = ("host", "port", "engine", "ref")
_CONTENT = ("tokens", "theta")

Done = Callable[[SimJob, list[bytes], int], None]


def unusable(live: SimJob) -> bool:
    """Whether a job's source is incomplete or of another prompt, so that nothing of it is read."""
    source = live.job.source or {}
    if any(source.get(key) is None for key in (*_ADDRESS, *_CONTENT)):
        return True
    return bool(live.job.kind == "decode" and source["tokens"] != len(live.job.token_ids))


class Reader:
    """One engine's transfers."""

    def __init__(self, graph: Graph, worker: Worker, fabric: Fabric, link: Link, cost: CostModel, totals: TransferTotals) -> None:
        self._fabric, self._link, self._cost, self._totals = fabric, link, cost, totals
        self._least, self._size = graph.transport.min_read_tokens, graph.model.block_size
        self._theta, self._token_bytes = worker.tensor_parallel, worker.sim.kv_bytes_per_token
        self._tasks: set[asyncio.Task[None]] = set()

    def wanted(self, live: SimJob) -> Read | None:
        """What a job with blocks has to read; None when its own cache holds it, or it is too short to be worth it.

        A prefill reads the leading whole blocks that match, a decode job its whole prompt.
        """
        source, prefill = live.job.source or {}, live.job.kind == "prefill"
        tokens = source["tokens"]
        if prefill:
            tokens = min(live.job.source_tokens, tokens, live.length - 1) // self._size * self._size
        missing = tokens - live.kv
        if missing <= 0 or (prefill and missing < self._least):
            return None
        seconds = self._cost.t_kv(missing, source["theta"], self._theta, "history" if prefill else "increment")
        return Read(source["ref"], live.filled, -(-tokens // self._size) - live.filled, seconds, self._link.owed_s())

    def reused(self, live: SimJob) -> int | None:
        """Prompt tokens that the writer of the source did not have to compute; None without a source."""
        reused: int | None = (live.job.source or {}).get("reused")
        return reused

    def start(self, live: SimJob, read: Read, done: Done) -> None:
        """Read in the background. `done` gets the contents, and the tokens that have KV then; both empty if the read failed."""
        task = asyncio.create_task(self._read(live, read, done), name=f"read-{live.job.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read(self, live: SimJob, read: Read, done: Done) -> None:
        source = live.job.source or {}
        tokens = min((read.first + read.count) * self._size, source["tokens"])
        missing = tokens - read.first * self._size
        live.read_tokens = missing
        began = live.read_started_at = time.time()
        # Others that begin meanwhile come after this one.
        self._link.occupy(read.seconds)
        try:
            lent = await self._fabric.read(source["host"], source["port"], source["engine"], read)
        except WorkerError as e:
            log.warning("job %s computes what it cannot read: %s", live.job.id, e)
            self._totals.failed += 1
            live.read_tokens, live.read_failed, live.read_ended_at = 0, True, time.time()
            done(live, [], 0)
            return
        await self._transferred(lent)
        ended = live.read_ended_at = time.time()
        self._totals.reads += 1
        self._totals.bytes += missing * self._token_bytes
        self._totals.seconds += ended - began
        done(live, lent.contents, tokens)

    async def _transferred(self, lent: Lent) -> None:
        self._link.until(lent.ends_in_s)
        await asyncio.sleep(lent.ends_in_s)

    def over(self, source: Mapping[str, Any] | None) -> None:
        """End the pin of a source, read or not."""
        if source is not None and all(source.get(key) is not None for key in _ADDRESS):
            self._fabric.over(source["host"], source["port"], source["engine"], source["ref"])

    async def stop(self) -> None:
        """Drop transfers under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
