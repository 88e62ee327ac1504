"""Workers around simulated engines, in one process, and what is asked of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from sim_engines import BLOCK, cost

from ampd.cost_model.calibration import Calibration, Pace
from ampd.messages import DecodeChunk, DecodeRequest, Handle, KvReply, KvRequest, PrefillRequest
from ampd.policy.reordering import Reordering, reorder
from ampd.policy.types import PrefillTask, Role
from ampd.state.memory import MemoryStore
from ampd.workers.decode import serve_decode
from ampd.workers.engines.sim import SimEngine
from ampd.workers.judge import Judge, Predictor
from ampd.workers.metrics import WorkerMetrics
from ampd.workers.reporter import Reporter
from ampd.workers.worker import Worker, WorkerIdentity

TRIO: tuple[Role, ...] = ("prefill", "decode", "decode")


class Cluster:
    """Workers around these engines, which reach each other's pins by their ids. With a `pace` they are calibrated."""

    def __init__(self, found: list[SimEngine], folder: Path, roles: Sequence[Role], pace: Pace | None = None) -> None:
        self.metrics = WorkerMetrics()
        self._predictor, self._pace = Predictor(cost(folder), 1, 1), pace
        self.store = MemoryStore()
        self.reporters: list[Reporter] = []
        self.workers = [self._worker(i, role, engine) for i, (role, engine) in enumerate(zip(roles, found, strict=True))]
        self.p, self.d, self.other = self.workers[0], self.workers[roles.index("decode")], self.workers[-1]

    def _worker(self, id: int, role: Role, engine: SimEngine) -> Worker:
        worker: Worker

        reporter = Reporter(self.store, lambda: worker.row(), lambda: worker.waiting(), 0.05)
        identity = WorkerIdentity(id, role, f"epoch-{id}", 1)
        calibration = None if self._pace is None else Calibration(self._pace)
        packs = role == "decode"
        judge = Judge(self._predictor, engine.load, calibration, self.metrics.judged, packs=packs)
        worker = Worker(identity, engine, reporter, self._order, 0.2, 60.0, self.metrics, judge, 512 if packs else 0)
        self.metrics.watch(f"{role}-{id}", worker, reporter)
        self.reporters.append(reporter)
        return worker

    def _order(self, tasks: Sequence[PrefillTask], now: float) -> Reordering:
        chosen = reorder(tasks, now, 3)
        self.metrics.reordered(chosen, max(task.postponed + (task.id in chosen.postponed) for task in tasks), 1e-5)
        return chosen

    async def kv(self, request: KvRequest) -> KvReply:
        """Peers, for all of them."""
        assert request.handle is not None
        return await self.workers[request.handle.worker].kv(request)

    async def samples(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Metrics by name, then by their labels' values."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.metrics.text()):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
        return found

    async def idle(self) -> None:
        """Claimed pins have had their grace: no worker holds KV."""
        end = time.monotonic() + 5
        while any(worker.engine.load().kv_used for worker in self.workers) or any(len(worker.pins) for worker in self.workers):
            assert time.monotonic() < end, [(w.engine.load(), len(w.pins)) for w in self.workers]
            await asyncio.sleep(0.02)


@asynccontextmanager
async def upkeep(
    found: list[SimEngine], folder: Path, roles: Sequence[Role] = TRIO, pace: Pace | None = None
) -> AsyncIterator[Cluster]:
    """A running cluster."""
    made = Cluster(found, folder, roles, pace)
    await made.store.connect()
    works = [*(worker.maintain(0.02) for worker in made.workers), *(reporter.run() for reporter in made.reporters)]
    tasks = [asyncio.create_task(work) for work in works]
    yield made
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def prefill_request(id: str, tokens: list[int], history: Handle | None = None, **more: object) -> PrefillRequest:
    held = history.tokens // BLOCK * BLOCK if history is not None else 0
    known: dict[str, object] = {"estimate_s": 0.1, "elapsed_s": 0.0, "ttft_target_s": 1.0}
    return PrefillRequest(id=id, session="s", round=1, token_ids=tokens, l_hist=held, history=history, **{**known, **more})


def decode_request(
    id: str, tokens: list[int], prefill: Handle | None = None, history: Handle | None = None, count: int = 6
) -> DecodeRequest:
    return DecodeRequest(
        id=id,
        session="s",
        round=1,
        path="local" if prefill is None else "remote",
        token_ids=tokens,
        l_hist=history.tokens // BLOCK * BLOCK if history is not None else 0,
        request={"stop_conditions": {"max_tokens": count, "ignore_eos": True}},
        prefill=prefill,
        history=history,
        keep=True,
        prefill_worker=0 if prefill is None else prefill.worker,
        estimate_s=0.1,
        elapsed_s=0.0,
        ttft_target_s=1.0,
    )


async def serve(worker: Worker, request: DecodeRequest) -> tuple[list[int], DecodeChunk]:
    chunks = [chunk async for chunk in serve_decode(worker, request)]
    return [t for chunk in chunks for t in chunk.output["token_ids"]], chunks[-1]
