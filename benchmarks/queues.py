"""Whether the prefill queues that Redis shows are the ones that the workers have."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from types import TracebackType

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ampd.errors import StateError
from ampd.launch import RunningGraph
from ampd.state.redis_store import RedisStore
from ampd.state.settings import StoreSettings

_EVERY_S = 0.5
_LATE_S, _LOOKS = 0.3, 2  # more than the time between two reports of a worker in a process of 32
_SETTLE_S = 20.0
_DEPTH, _INFO = "ampd_prefill_queue_depth", "ampd_worker_info"


class QueueWatch:
    """Compares, every half second, the tasks that wait in Redis with those that the workers' metrics report, worker by worker.

    The two are read one after the other and tasks come and go meanwhile, so a sample counts only for workers whose own figure is
    the same before and after, and only if one of both shows a task: empty queues are equal too easily. Reports of many workers in
    a process may be late, so those that differ are looked at again: they count as unequal if they differ still, by the same tasks,
    and not at all if something has changed. Nothing counts while Redis is away. Use as an async context manager.
    """

    def __init__(self, running: RunningGraph) -> None:
        self._running = running
        # Not the store that bridges outages: what it answers then is what it saw last.
        self._store = RedisStore(running.state_url, None, running.graph.name, StoreSettings.of(running.graph))
        self.samples = 0
        self._equal = 0
        self.differences: Counter[str] = Counter()

    @property
    def equal_share(self) -> float:
        """The share of samples in which both were equal."""
        return self._equal / self.samples if self.samples else 0.0

    async def __aenter__(self) -> QueueWatch:
        await self._store.connect()
        self._http = aiohttp.ClientSession()
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._http.close()
        await self._store.close()

    async def settle(self) -> bool:
        """Whether, soon after the load has ended, no task is left in any queue, in Redis or at a worker."""
        for _ in range(round(_SETTLE_S / _EVERY_S)):
            with suppress(StateError):
                if not sum((await self._at_workers()).values()) and not sum((await self._in_redis()).values()):
                    return True
            await asyncio.sleep(_EVERY_S)
        return False

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            with suppress(aiohttp.ClientError, StateError):
                equal, other = await self._look()
                self._equal += len(equal)
                self.samples += len(equal)
                for _ in range(_LOOKS):
                    if not other:
                        break
                    await asyncio.sleep(_LATE_S)
                    equal, others = await self._look()
                    agreed = [w for w in other if w in equal]
                    self._equal += len(agreed)
                    self.samples += len(agreed)
                    other = {w: differ for w, differ in other.items() if others.get(w) == differ}
                self.samples += len(other)
                self.differences.update(f"{here} here, {len(tasks)} in Redis" for here, tasks in other.values())

    async def _look(self) -> tuple[list[str], dict[str, tuple[int, frozenset[str]]]]:
        """Workers with tasks of which both say the same; where they do not, how many the worker has, and which Redis shows."""
        before, shown, after = await self._at_workers(), await self._in_redis(), await self._at_workers()
        still = [w for w in before if before[w] == after.get(w)]
        equal = [w for w in still if before[w] == shown.get(w, 0) and before[w]]
        other = {}
        for w in [w for w in still if before[w] != shown.get(w, 0)]:
            tasks = frozenset(entry.id for entry in await self._store.queue(int(w)))
            if len(tasks) != before[w]:  # else they have come to agree between the two reads
                other[w] = (before[w], tasks)
        return equal, other

    async def _in_redis(self) -> dict[str, int]:
        view = await self._store.view()
        return {str(w.id): w.queued_tasks for w in (*view.prefill, *view.decode)}

    async def _at_workers(self) -> dict[str, int]:
        """Depth by worker id. The metrics name workers by a label that outlives a restart; an info metric has the ids."""
        depths: dict[tuple[str, str], int] = {}
        ids: dict[tuple[str, str], str] = {}
        for url in [url for name, url in self._running.metrics.items() if name != "frontend" and "coordinator" not in name]:
            async with self._http.get(url) as answer:
                text = await answer.text()
            for sample in [s for family in text_string_to_metric_families(text) for s in family.samples]:
                if sample.name == _DEPTH:
                    depths[url, sample.labels["worker"]] = int(sample.value)
                elif sample.name == _INFO:
                    ids[url, sample.labels["worker"]] = sample.labels["id"]
        return {ids[key]: depth for key, depth in depths.items() if key in ids}
