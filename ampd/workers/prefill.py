"""Remote prefills: wait for the turn, claim the history, read it lazily, compute, pin (steps 5 and 6 of a round)."""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol

from ampd.errors import KvFenceError, WorkerError
from ampd.ledger import build, chain_at
from ampd.messages import KvReply, KvRequest, PrefillRequest, PrefillResult
from ampd.workers.engine_run import EngineRun
from ampd.workers.engines.base import EngineJob, EngineOutput, KvFacts
from ampd.workers.worker import Worker

log = logging.getLogger(__name__)


class Peers(Protocol):
    """The `kv` endpoint of the decode workers."""

    async def kv(self, request: KvRequest) -> KvReply:
        """Ask the holder of a handle. Raises WorkerError when it cannot be asked."""


async def serve_prefill(worker: Worker, peers: Peers, request: PrefillRequest) -> PrefillResult:
    """Serve one remote prefill, on a prefill worker or on a decode worker that has slack (where it takes the one turn that
    local prefills share). `worker.cancel` stops it in any phase; a transfer under way ends by itself.

    Raises RoundCancelled, RequestError (the engine refuses the prompt), WorkerError.
    """
    with worker.round(request.id):
        turn = await worker.take_turn(request)
        try:
            return await _prefill(worker, peers, request, turn.queued_s)
        finally:
            worker.queue.leave(request.id)


async def _prefill(worker: Worker, peers: Peers, request: PrefillRequest, queued_s: float) -> PrefillResult:
    ledger = build(request.token_ids, worker.block_size)
    await worker.make_room(len(request.token_ids))
    source, recompute = await _claim(worker, peers, request, ledger)
    worker.check_wanted(request.id)
    job = EngineJob(
        id=request.id,
        kind="prefill",
        token_ids=request.token_ids,
        source=source,
        source_tokens=request.l_hist if source else 0,
        priority=request.priority,
        cache_salt=request.cache_salt,
        trace=request.trace,
    )
    started = time.monotonic()
    watch = worker.judge.watch("history", len(request.token_ids), computes=True)
    watch.begins()
    try:
        output = await _pinned_output(worker, job)
    finally:
        watch.ends()
    seconds = time.monotonic() - started
    kv = output.kv or KvFacts()
    worker.observe("history", output, watch)
    if kv.read_failed:
        recompute = "read_failed"
        worker.counters.recompute(recompute)
    return PrefillResult(
        handle=await worker.issue(request.id, request.session, output, ledger),
        queue_s=queued_s,
        read_s=kv.read_s,
        prefill_s=max(0.0, seconds - kv.read_s),
        read_tokens=kv.read_tokens,
        cached_tokens=kv.cached_tokens,
        recompute=recompute,
        kv_written=worker.engine.load().kv_written,
    )


async def _pinned_output(worker: Worker, job: EngineJob) -> EngineOutput:
    async with EngineRun(worker.engine, job) as run:
        async for output in run.outputs():
            if output.ref is not None:
                return output
    worker.check_wanted(job.id)
    raise WorkerError(f"prefill {job.id} ended without a result")


async def _claim(worker: Worker, peers: Peers, request: PrefillRequest, ledger: bytes) -> tuple[dict[str, Any] | None, str | None]:
    """The history's transfer parameters if this task may read it, else why not."""
    handle = request.history
    if handle is None or request.l_hist == 0:
        return None, None
    chain = chain_at(ledger, request.l_hist, worker.block_size)
    try:
        if handle.session != request.session:
            raise KvFenceError("session")
        reply = await peers.kv(KvRequest(op="claim", handle=handle, tokens=request.l_hist, chain=chain))
    except KvFenceError as e:
        reply = KvReply(ok=False, cause=e.cause)
    except WorkerError as e:
        log.warning("history of session %s cannot be claimed: %s", request.session, e)
        reply = KvReply(ok=False, cause="unreachable")
    if reply.ok:
        return handle.source(), None
    cause = reply.cause or "refused"
    worker.counters.recompute(cause)
    return None, cause
