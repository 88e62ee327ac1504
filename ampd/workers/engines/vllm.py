"""The vLLM engine: an AsyncLLM with ampd's connector and schedulers, on CPUs and GPUs alike.

vLLM is imported when the engine starts, after its environment is set.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from psutil import Process

from ampd.config import Graph, Worker
from ampd.errors import ConfigError, EngineDead, RequestError, SetupError, WorkerError
from ampd.workers.engines import vllm_args
from ampd.workers.engines.base import EngineInfo, EngineJob, EngineLoad, EngineOutput
from ampd.workers.engines.outputs import OutputMapper, final_output, without_pin
from ampd.workers.engines.processes import end_processes, trees
from ampd.workers.kv.params import outgoing, readable, reused_tokens, unread

log = logging.getLogger(__name__)

# An engine that only holds pins is asked this often what others have read meanwhile, seconds.
_POLL_S = 0.25
# And this long after its last job, to carry the notifications that wait for a handshake.
_LINGER_S = 15.0
_WATCH_S = 0.2
_STOP_S, _KILL_S = 8.0, 2.0


@dataclass(slots=True)
class _Live:
    """A job under way, and where vLLM puts its results once it knows it."""

    queue: Any = None
    begun: bool = False  # it has tokens
    aborted: bool = False


class VllmEngine:
    """See `ampd.workers.engines.base.Engine`. One per process group; `index` picks the replica's cores.

    A job uses up its `source` and `release` whatever becomes of it: read or not, finished, refused or aborted, the pin on the
    other side is told, and the pins named here are dropped.
    """

    def __init__(self, graph: Graph, worker: Worker, index: int, side_channel_port: int) -> None:
        self._graph, self._worker = graph, worker
        self._environment = vllm_args.environment(graph, worker, index, side_channel_port)
        self._llm: Any = None
        self._info: EngineInfo | None = None
        self._recorder: Any = None
        self._defaults: dict[str, Any] = {}
        self._jobs: dict[str, _Live] = {}
        self._poller: asyncio.Task[None] | None = None
        self._last_job = 0.0
        self._stopping = False
        self._processes: list[Process] = []

    @property
    def info(self) -> EngineInfo:
        """Facts of the started engine."""
        if self._info is None:
            raise EngineDead("the engine has not been started")
        return self._info

    @property
    def transfers(self) -> Any:
        """KV read so far, `TransferTotals`."""
        return self._recorder.transfers

    # ---- life

    async def start(self) -> None:
        """Load the model and start the engine's processes. Raises ConfigError or SetupError; blocks the loop meanwhile."""
        with vllm_args.applied(self._environment):
            self._llm = self._make()
        self._processes = trees(process.pid for process in self._llm.engine_core.resources.engine_manager.processes)
        self._info = self._facts()
        self._recorder.kv_tokens = self._info.kv_total
        self._defaults = self._llm.model_config.get_diff_sampling_param()
        self._poller = asyncio.create_task(self._poll(), name="kv-poll")

    def _make(self) -> Any:
        try:
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.platforms import current_platform
            from vllm.v1.engine.async_llm import AsyncLLM

            from ampd.workers.engines.vllm_stats import LoadRecorder
        except ImportError as e:
            raise SetupError(f"vLLM cannot be imported: {e}; install ampd's CPU set with `make setup`, or ampd[vllm]") from e
        recorder = self._recorder = LoadRecorder()
        try:
            args = AsyncEngineArgs(**vllm_args.engine_args(self._graph, self._worker, current_platform.is_cpu()))
            return AsyncLLM.from_engine_args(args, stat_loggers=[lambda config, index: recorder])
        except ConfigError:
            raise
        except (ValueError, TypeError, AssertionError, OSError, RuntimeError, NotImplementedError) as e:
            reason = " ".join(str(e).split()) or type(e).__name__
            raise SetupError(f"worker {self._worker.name}: vLLM does not start with model.* and its engine_args: {reason}") from e

    def _facts(self) -> EngineInfo:
        from vllm import __version__

        model, cache = self._llm.model_config, self._llm.vllm_config.cache_config
        heads = 1 if model.use_mla else 2 * model.get_total_num_kv_heads()
        # One block of the pool is vLLM's null block.
        return EngineInfo(
            engine="vllm",
            version=__version__,
            model=self._graph.model.served_name,
            block_size=cache.block_size,
            kv_total=(cache.num_gpu_blocks - 1) * cache.block_size,
            max_model_len=model.max_model_len,
            theta=self._worker.tensor_parallel,
            kv_bytes_per_token=model.get_total_num_hidden_layers() * heads * model.get_head_size() * model.dtype.itemsize,
        )

    async def wait_dead(self) -> None:
        """Return when the engine has died, not when it was stopped."""
        # vLLM offers no event for this.
        while self._llm is None or not self._llm.errored:  # noqa: ASYNC110
            await asyncio.sleep(_WATCH_S)

    async def stop(self) -> None:
        """Stop the engine; its processes are gone afterwards."""
        if self._stopping:
            return
        self._stopping = True
        if self._poller is not None:
            self._poller.cancel()
            with suppress(asyncio.CancelledError):
                await self._poller
        llm, self._llm = self._llm, None
        if llm is not None:
            if llm.output_handler is not None:
                llm.output_handler.cancel()  # else it reports the engine's end as a failure
            for live in self._jobs.values():
                if live.queue is not None:
                    live.queue.put(EngineDead(f"worker {self._worker.name}: the engine was stopped"))
            await asyncio.to_thread(llm.shutdown, _STOP_S)
            await asyncio.to_thread(end_processes, self._processes, _KILL_S)

    # ---- jobs

    async def generate(self, job: EngineJob) -> AsyncIterator[EngineOutput]:
        """Run a job. Raises RequestError, WorkerError (the engine failed this job), EngineDead."""
        from vllm.v1.engine.exceptions import EngineDeadError

        if self._llm is None:
            raise EngineDead(f"worker {self._worker.name}: the engine is not running")
        if job.id in self._jobs:
            raise WorkerError(f"job {job.id} is already running")
        live = self._jobs[job.id] = _Live()
        ended = False
        try:
            mapper = OutputMapper(self._decode, reused_tokens(job.source) if job.kind == "decode" else None)
            queue = live.queue = await self._submit(job)
            if live.aborted:
                await self._abort(queue.request_id)
            while not ended:
                result = queue.get_nowait() or await queue.get()
                pieces = mapper.map(result)
                live.begun = live.begun or bool(pieces)
                for piece in pieces[:-1] if result.finished else pieces:
                    yield piece
                if result.finished:
                    final = final_output(job, result, pieces, self._lease_s(job))
                    ended = True
                    # From here on an abort is too late; one that came before has released the pin.
                    del self._jobs[job.id]
                    yield without_pin(final) if live.aborted else final
        except EngineDeadError as e:
            raise EngineDead(f"worker {self._worker.name}: the engine has died") from e
        finally:
            self._last_job = time.monotonic()
            if not ended:
                self._jobs.pop(job.id, None)
                if live.queue is not None:
                    await self._abort(live.queue.request_id)

    async def _submit(self, job: EngineJob) -> Any:
        from vllm.exceptions import VLLMClientError
        from vllm.inputs.engine import tokens_input

        from ampd.workers.engines.sampling import reasoning, sampling_params

        job = await self._with_usable_source(job)
        kv_params = outgoing(job, self.info.block_size)
        reasoning_ended, reasoning_kwargs = reasoning(job.request)
        try:
            return await self._llm.add_request(
                job.id,
                tokens_input(list(job.token_ids), cache_salt=job.cache_salt),
                sampling_params(job, self._defaults, self.info.max_model_len, kv_params),
                trace_headers=job.trace,
                reasoning_ended=reasoning_ended,
                reasoning_parser_kwargs=reasoning_kwargs,
            )
        except (RequestError, VLLMClientError, ValueError, TypeError) as e:
            await self._discard(job.id, kv_params)
            raise e if isinstance(e, RequestError) else RequestError(" ".join(str(e).split())) from e

    async def _with_usable_source(self, job: EngineJob) -> EngineJob:
        if job.source is None or readable(job, self.info.block_size):
            return job
        log.warning("job %s: its KV source is incomplete or of another prompt; recomputing", job.id)
        if (ending := unread(job.source)) is not None:
            await self._discard(job.id, ending)
        return replace(job, source=None)

    async def _discard(self, job_id: str, kv_params: dict[str, Any]) -> None:
        """Have the connector end the pins of a job that will not run."""
        self._last_job = time.monotonic()
        await self._llm.notify_kv_transfer_request_rejected(f"{job_id}-discard", kv_params)

    def _lease_s(self, job: EngineJob) -> float:
        held = vllm_args.decode_pin_s(self._graph) if job.kind == "decode" else vllm_args.PREFILL_LEASE_S
        return held - vllm_args.READ_MARGIN_S

    async def abort(self, job_id: str) -> None:
        """Stop a job in any phase; a KV transfer under way ends by itself."""
        live = self._jobs.get(job_id)
        if live is not None:
            live.aborted = True
            if live.queue is not None:
                await self._abort(live.queue.request_id)

    async def finish(self, job_id: str) -> None:
        """End a job at its next token, or abort it before its first."""
        from ampd.workers.kv.scheduler import FINISH

        live = self._jobs.get(job_id)
        if live is not None and live.begun:
            await self._tell([f"{FINISH}{live.queue.request_id}"])
        elif live is not None:
            await self.abort(job_id)

    async def _abort(self, internal: str) -> None:
        if self._llm is not None:
            await self._llm.abort(internal, internal=True)
        # The job may have finished inside the engine, its result under way: then this releases its pin.
        await self._tell([internal])

    async def _tell(self, names: list[str]) -> None:
        """Name requests to AmpdScheduler: it aborts those that run, and releases the pins of those that have finished."""
        if self._llm is not None:
            await self._llm.engine_core.abort_requests_async(names)

    # ---- KV

    async def release(self, refs: Sequence[str]) -> None:
        """Drop pins."""
        await self._tell(list(refs))

    def load(self) -> EngineLoad:
        """The last step's load."""
        load: EngineLoad = self._recorder.load
        return load

    async def reset_prefix_cache(self) -> None:
        """Forget all unpinned cached KV."""
        await self._llm.reset_prefix_cache()

    async def _poll(self) -> None:
        from ampd.workers.kv.scheduler import POLL

        while True:
            await asyncio.sleep(_POLL_S)
            if self.load().kv_used or time.monotonic() - self._last_job < _LINGER_S:
                await self._tell([POLL])

    @property
    def _decode(self) -> Callable[[int], str | None]:
        tokenizer = self._llm.tokenizer
        return lambda token_id: tokenizer.decode([token_id])
