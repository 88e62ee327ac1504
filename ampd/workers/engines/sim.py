"""The simulated engine: no model, but an engine's time, its KV, and answers that are right only if all KV was.

Same protocol and same worker code around it as the vLLM engine. Its steps take what the graph's profile says; its blocks, pins and
prefix cache behave as vLLM's do with ampd's connector; KV is read from other engines through `sim_link`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from ampd.config import Graph, Worker
from ampd.cost_model import CoarseCostModel
from ampd.cost_model.scaled import ScaledCostModel
from ampd.errors import AmpdError, EngineDead, ProfileError, SetupError, WorkerError
from ampd.workers.costs import profiled_cost
from ampd.workers.engines.base import EngineInfo, EngineJob, EngineLoad, EngineOutput
from ampd.workers.engines.sim_batch import Batch, Rules
from ampd.workers.engines.sim_core import Core
from ampd.workers.engines.sim_job import SimJob, parse
from ampd.workers.engines.sim_kv import BlockPool
from ampd.workers.engines.sim_link import Fabric, Lent, Link, Read
from ampd.workers.engines.sim_pins import SimPins
from ampd.workers.engines.sim_read import Reader
from ampd.workers.engines.sim_text import words
from ampd.workers.engines.transfers import TransferTotals


class SimEngine:
    """See `ampd.workers.engines.base.Engine`. `fabric` is shared by the engines of a process."""

    def __init__(self, graph: Graph, worker: Worker, index: int, fabric: Fabric) -> None:
        self._graph, self._worker, self._fabric = graph, worker, fabric
        self.id = uuid.uuid4().hex
        sim, failures = worker.sim, worker.sim.failures
        self._fails = not failures.replicas or index in failures.replicas
        self._jobs_left = failures.die_after_jobs if self._fails and failures.die_after_jobs is not None else -1
        self._chance = random.Random(f"{worker.name}-{index}")
        size = graph.model.block_size
        self._pool = BlockPool(sim.kv_tokens // size)
        self._cost = profiled_cost(graph, worker) or ScaledCostModel(CoarseCostModel(), sim.speed)
        if self._fails and failures.slow_factor != 1.0:
            self._cost = ScaledCostModel(self._cost, 1 / failures.slow_factor)
        rules = Rules(
            alone=worker.role == "prefill",
            local_prefill=graph.policy.local_prefill,
            chunk=worker.prefill_chunk,
            most_running=sim.max_running,
            together=sim.stream_interval,
            theta=worker.tensor_parallel,
        )
        self._batch = Batch(self._pool, size, self._cost, rules)
        self._pins = SimPins(graph, worker, self._pool, self.id, fabric)
        self._link = Link(time.monotonic)
        self.transfers = TransferTotals()
        self._reader = Reader(graph, worker, fabric, self._link, self._cost, self.transfers)
        self._jobs: dict[str, SimJob] = {}
        self._numbers = itertools.count()
        self._core = Core(self._batch, self._pins, self._reader, words(Path(graph.model.path)))
        self.info = EngineInfo(
            engine="sim",
            version=version("ampd"),
            model=graph.model.served_name,
            block_size=size,
            kv_total=self._pool.total * size,
            max_model_len=graph.model.max_model_len,
            theta=worker.tensor_parallel,
            kv_bytes_per_token=sim.kv_bytes_per_token,
        )
        self._dead = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    # ---- life

    async def start(self) -> None:
        """Begin to step. Raises SetupError when the graph's figures do not fit, or the side channel's port is taken."""
        name, info = self._worker.name, self.info
        if info.kv_total <= info.max_model_len:
            raise SetupError(
                f"workers[{name}].sim.kv_tokens = {info.kv_total}: a prompt of model.max_model_len = {info.max_model_len} tokens "
                "does not fit; raise it or lower model.max_model_len"
            )
        try:
            for other in self._graph.workers:
                self._cost.t_kv(1, other.tensor_parallel, info.theta, "history" if self._worker.role == "prefill" else "increment")
            self._cost.t_mixed(1, 1, 1, info.theta)
        except ProfileError as e:
            raise SetupError(f"worker {name}: {e}") from e
        try:
            await self._fabric.join(self.id, self)
        except OSError as e:
            raise SetupError(f"worker {name}: no side channel at {self._fabric.host}:{self._fabric.port}: {e.strerror}") from e
        self._loop = asyncio.create_task(self._core.run(), name=f"sim-{self.id}")

    async def wait_dead(self) -> None:
        """Return when the engine has died, not when it was stopped."""
        await self._dead.wait()

    async def stop(self) -> None:
        """Stop the engine; its jobs fail."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        self._fail_all("was stopped")
        await self._end(loop)
        await self._fabric.leave(self.id)

    async def _end(self, loop: asyncio.Task[None]) -> None:
        loop.cancel()
        with suppress(asyncio.CancelledError):
            await loop
        await self._reader.stop()
        self._pins.clear()

    async def _die(self) -> None:
        """As a process that is killed: jobs break, pins are gone, peers are not told."""
        loop, self._loop = self._loop, None
        self._fail_all("has died")
        await self._fabric.leave(self.id)
        self._dead.set()
        if loop is not None:
            await self._end(loop)

    def _fail_all(self, why: str) -> None:
        for job in self._jobs.values():
            job.outputs.put_nowait(EngineDead(f"worker {self._worker.name}: the engine {why}"))

    # ---- jobs

    async def generate(self, job: EngineJob) -> AsyncIterator[EngineOutput]:
        """Run a job. Raises RequestError, EngineDead."""
        if self._jobs_left == 0 and self._loop is not None:
            await self._die()
        if self._loop is None:
            raise EngineDead(f"worker {self._worker.name}: the engine is not running")
        if job.id in self._jobs:
            raise WorkerError(f"job {job.id} is already running")
        self._jobs_left -= 1
        live = self._submit(job)
        try:
            while True:
                output = await live.outputs.get()
                if isinstance(output, AmpdError):
                    raise output
                yield output
                if output.finished:
                    return
        finally:
            if self._jobs.get(job.id) is live:
                self._core.stop(live)
                del self._jobs[job.id]

    def _submit(self, job: EngineJob) -> SimJob:
        try:
            ask = parse(job, self._graph.model.max_model_len)
        except AmpdError:
            self._reader.over(job.source)
            self._pins.release(job.release)
            raise
        live = SimJob(job, ask, next(self._numbers), self._graph.model.block_size, self._graph.targets.itl_s)
        self._jobs[job.id] = live
        self._core.submit(live)
        return live

    async def abort(self, job_id: str) -> None:
        """Stop a job in any phase; a KV transfer under way ends by itself."""
        live = self._jobs.get(job_id)
        if live is not None:
            self._core.stop(live)

    async def finish(self, job_id: str) -> None:
        """End a job at its next token, or abort it before its first."""
        live = self._jobs.get(job_id)
        if live is not None:
            self._core.finish_soon(live)

    # ---- KV

    def lend(self, read: Read) -> Lent | None:
        """See Holder."""
        failures = self._worker.sim.failures
        if self._fails and failures.refuse_reads and self._chance.random() < failures.refuse_reads:
            return None
        contents = self._pins.contents(read.ref, read.first, read.count)
        return None if contents is None else Lent(self._link.occupy(read.seconds, read.not_before_s), contents)

    def read_over(self, ref: str) -> None:
        """See Holder."""
        self._pins.release([ref])
        self._core.wake()

    async def release(self, refs: Sequence[str]) -> None:
        """Drop pins."""
        self._pins.release(refs)
        self._core.wake()

    def load(self) -> EngineLoad:
        """The load now."""
        batch, size = self._batch, self._graph.model.block_size
        return EngineLoad(
            running=batch.running,
            waiting=len(batch.waiting),
            kv_used=self._pool.used * size,
            context=sum([job.kv for job in batch.decoding]),
            link_s=self._link.owed_s(),
            kv_written=self._pool.allocated * size,
        )

    async def reset_prefix_cache(self) -> None:
        """Forget all unpinned cached KV."""
        self._pool.reset()
