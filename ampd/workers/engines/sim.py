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
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from ampd.config import Graph, Worker
from ampd.cost_model import CoarseCostModel, load_profile
from ampd.cost_model.scaled import ScaledCostModel
from ampd.errors import AmpdError, EngineDead, ProfileError, SetupError, WorkerError
from ampd.policy.types import CostModel
from ampd.workers.engines.base import EngineInfo, EngineJob, EngineLoad, EngineOutput
from ampd.workers.engines.sim_batch import Batch, Rules, Step
from ampd.workers.engines.sim_job import SimJob, cancelled, parse
from ampd.workers.engines.sim_kv import BlockPool
from ampd.workers.engines.sim_link import Fabric, Lent, Link, Read
from ampd.workers.engines.sim_pins import SimPins
from ampd.workers.engines.sim_read import Reader, unusable
from ampd.workers.engines.sim_text import words
from ampd.workers.engines.transfers import TransferTotals

# A loop that is late catches up by this much at most: a busy machine may stretch steps, never pile them up.
_LAG_S = 0.05


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
        self._cost = _cost(graph, worker, sim.speed / (failures.slow_factor if self._fails else 1.0))
        rules = Rules(
            alone=worker.role == "prefill",
            local_prefill=graph.policy.local_prefill,
            chunk=worker.prefill_chunk,
            most_running=sim.max_running,
            together=sim.stream_interval,
            theta=worker.tensor_parallel,
        )
        self._batch = Batch(self._pool, size, self._cost, rules)
        self._pins = SimPins(graph, worker, self._pool)
        self._link = Link(time.monotonic)
        self.transfers = TransferTotals()
        self._reader = Reader(graph, worker, fabric, self._link, self._cost, self.transfers)
        self._jobs: dict[str, SimJob] = {}
        self._numbers = itertools.count()
        self._words: list[int] = []
        self._wake = asyncio.Event()
        self._dead = asyncio.Event()
        self._loop: asyncio.Task[None] | None = None

    @property
    def info(self) -> EngineInfo:
        """Facts of the engine."""
        model, size = self._graph.model, self._graph.model.block_size
        return EngineInfo(
            engine="sim",
            version=version("ampd"),
            model=model.served_name,
            block_size=size,
            kv_total=self._pool.total * size,
            max_model_len=model.max_model_len,
            theta=self._worker.tensor_parallel,
            kv_bytes_per_token=self._worker.sim.kv_bytes_per_token,
        )

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
        self._words = words(Path(self._graph.model.path))
        try:
            await self._fabric.join(self.id, self)
        except OSError as e:
            raise SetupError(f"worker {name}: no side channel at {self._fabric.host}:{self._fabric.port}: {e.strerror}") from e
        self._loop = asyncio.create_task(self._run(), name=f"sim-{self.id}")

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
                self._stop_job(live)
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
        self._batch.submit(live)
        self._wake.set()
        return live

    async def abort(self, job_id: str) -> None:
        """Stop a job in any phase; a KV transfer under way ends by itself."""
        live = self._jobs.get(job_id)
        if live is not None:
            self._stop_job(live)

    def _stop_job(self, live: SimJob) -> None:
        """End a job without a pin."""
        if live.phase == "ended":
            self._drop_unread(live)
            return
        transferring = live.phase == "reading"
        self._batch.leave(live)
        self._let_go(live)
        if not transferring:  # else its blocks are dropped, and its source is over, once the transfer is
            self._finish_source(live)
            self._pool.drop(live.blocks)
        live.outputs.put_nowait(cancelled(live))
        self._wake.set()

    def _drop_unread(self, live: SimJob) -> None:
        """Of a job that has ended: its pin, if nobody has received it yet."""
        waiting = []
        while not live.outputs.empty():
            output = live.outputs.get_nowait()
            if isinstance(output, EngineOutput) and output.ref is not None:
                self._pins.release([output.ref])
                output = replace(output, ref=None, params=None, pinned_tokens=0, expires_at=0.0)
            waiting.append(output)
        for output in waiting:
            live.outputs.put_nowait(output)

    async def finish(self, job_id: str) -> None:
        """End a job at its next token, or abort it before its first."""
        live = self._jobs.get(job_id)
        if live is None or live.phase == "ended":
            return
        if live.generated:
            live.ask.most = live.generated + 1
            live.ask.least = 0
            self._wake.set()
        else:
            self._stop_job(live)

    # ---- steps

    async def _run(self) -> None:
        due = time.monotonic()
        while True:
            for live in self._batch.admit():
                self._admitted(live)
            now = time.monotonic()
            begin = max(due, now - _LAG_S)
            step = self._batch.plan(begin)
            if step is None:
                self._wake.clear()
                await self._wake.wait()
                due = time.monotonic()
                continue
            count, due = await self._pass(step, begin)
            if count:
                self._batch.finish(step, count, due, self._sampled, self._words)

    async def _pass(self, step: Step, begin: float) -> tuple[int, float]:
        """Let a step's time pass. Returns how many of its steps are over, and when: what comes up ends it after the current one."""
        count = step.count
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            left = begin + count * step.seconds - time.monotonic()
            if left <= 0:
                # Others have their turn even if every step is late.
                await asyncio.sleep(0)
                return count, begin + count * step.seconds
            timer = loop.call_later(left, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()
            now = time.monotonic()
            if step.prefill is not None and not step.decoding and step.prefill.phase != "prefilling":
                return 0, now
            count = min(count, int((now - begin) / step.seconds) + 1)

    def _admitted(self, live: SimJob) -> None:
        self._let_go(live)
        live.reused = self._reader.reused(live) if live.job.kind == "decode" else None
        read = None if live.source is None or unusable(live) else self._reader.wanted(live)
        if read is None:
            self._finish_source(live)
            self._batch.ready(live)
            return
        live.phase = "reading"
        self._batch.reading.add(live)
        self._reader.start(live, read, self._has_read)

    def _has_read(self, live: SimJob, contents: list[bytes], tokens: int) -> None:
        """A transfer is over; without contents it has failed."""
        self._finish_source(live)
        if live.phase != "reading":
            self._pool.drop(live.blocks)
        else:
            if contents:
                self._batch.read(live, contents, tokens)
            self._batch.ready(live)
        self._wake.set()

    def _sampled(self, live: SimJob, tokens: list[int], reason: str | None) -> None:
        output = live.emit(tokens, reason, live.generated == len(tokens))
        if reason is not None:
            self._batch.leave(live)
            output = replace(output, finished=True, kv=live.facts)
            if live.job.pin and live.ask.choices == 1:
                output = self._pins.pin(live, output, self.id, self._fabric)
            else:
                self._pool.drop(live.blocks)
        live.outputs.put_nowait(output)

    # ---- KV

    def _let_go(self, live: SimJob) -> None:
        """Release what the job was given to release."""
        refs, live.release = live.release, ()
        self._pins.release(refs)

    def _finish_source(self, live: SimJob) -> None:
        """End the pin that the job was to read."""
        source, live.source = live.source, None
        self._reader.over(source)

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
        self._wake.set()

    async def release(self, refs: Sequence[str]) -> None:
        """Drop pins."""
        self._pins.release(refs)
        self._wake.set()

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


def _cost(graph: Graph, worker: Worker, speed: float) -> CostModel:
    """The engine's own times. Raises ProfileError."""
    profile = None if graph.profile is None else load_profile(graph.profile)
    if profile is not None:
        profile.check(model=graph.model.served_name, theta=worker.tensor_parallel, block_size=graph.model.block_size)
    cost: CostModel = CoarseCostModel() if profile is None else profile.cost_model()
    return cost if speed == 1.0 else ScaledCostModel(cost, speed)
