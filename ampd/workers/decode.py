"""Rounds on their bound decode worker: a local prefill or the read of a remote one, decoding, and the session's next pin."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from ampd.errors import KvFenceError
from ampd.ledger import Match, build, chain_at, grow, measure
from ampd.messages import DecodeChunk, DecodeRequest, Handle, RoundStats
from ampd.workers.engine_run import EngineRun
from ampd.workers.engines.base import EngineJob, EngineOutput, KvFacts
from ampd.workers.judge import JobWatch
from ampd.workers.round_meter import RoundMeter
from ampd.workers.worker import Worker


async def serve_decode(worker: Worker, request: DecodeRequest) -> AsyncIterator[DecodeChunk]:
    """Serve one round. `worker.cancel` stops it in any phase: the chunks then end without a handle.

    Raises RoundCancelled (before the engine knew it), RequestError (the engine refuses it), WorkerError.
    """
    meter = RoundMeter(time.monotonic() - request.elapsed_s)
    prompt = measure(request.token_ids, worker.block_size)
    source, recompute = _source(worker, request, prompt[0])
    job = EngineJob(
        id=request.id,
        kind="decode",
        token_ids=request.token_ids,
        request=request.request,
        source=source,
        pin=request.keep and _choices(request) == 1,
        itl_target_s=request.itl_target_s,
        priority=request.priority,
        cache_salt=_cache_salt(request),
        trace=request.trace,
    )
    with worker.round(request.id):
        watch = worker.judge.watch("increment", len(request.token_ids), computes=request.path == "local")
        queued_s = 0.0 if request.path == "remote" else (await worker.take_turn(request)).queued_s
        try:
            await worker.make_room(len(request.token_ids), request.session)
            if request.path == "remote":
                await worker.release(request.history, request.session)
            worker.check_wanted(request.id)
            watch.begins()
            async with EngineRun(worker.engine, job) as run:
                generated: list[int] = []
                async for output in run.outputs():
                    _measure(worker, request, meter, watch, output)
                    if meter.tokens:
                        worker.queue.leave(request.id)  # the next local prefill may start
                    generated.extend(output.output.get("token_ids") or ())
                    if not output.finished:
                        yield DecodeChunk(output=output.output)
                        continue
                    handle = await _kept(worker, request, output, generated, *prompt)
                    if handle is not None:
                        await worker.release(request.history, request.session)
                    stats = _stats(request, meter, output, queued_s, recompute)
                    worker.observe("increment", output, watch)
                    yield DecodeChunk(output=output.output, stats=stats, handle=handle)
        finally:
            watch.ends()
            worker.queue.leave(request.id)


def _source(worker: Worker, request: DecodeRequest, ledger: bytes) -> tuple[dict[str, Any] | None, str | None]:
    """The prompt's transfer parameters for a remote round; and why KV that was promised is not used, if so."""
    try:
        if request.path == "remote":
            return _checked_prefill(worker, request, ledger), None
        if request.history is not None and request.history.session != request.session:
            raise KvFenceError("session")
        if request.l_hist and request.history is not None:
            worker.pins.check_local(request.history, request.l_hist, ledger)
    except KvFenceError as e:
        worker.counters.recompute(e.cause)
        worker.fenced(e.cause)
        return None, e.cause
    return None, None


def _checked_prefill(worker: Worker, request: DecodeRequest, ledger: bytes) -> dict[str, Any]:
    handle = request.prefill
    if handle is None:
        raise KvFenceError("unknown")
    if handle.session != request.session:
        raise KvFenceError("session")
    if handle.tokens > len(request.token_ids) or chain_at(ledger, handle.tokens, worker.block_size) != handle.chain:
        raise KvFenceError("prefix")
    if time.time() >= handle.expires_at:
        raise KvFenceError("expired")
    return handle.source()


def _measure(worker: Worker, request: DecodeRequest, meter: RoundMeter, watch: JobWatch, output: EngineOutput) -> None:
    if output.output.get("index") or 0:
        return  # further choices of one request leave beside the first
    first = meter.tokens == 0
    gap = meter.add(time.monotonic(), output.tokens)
    if gap is not None:
        worker.telemetry.itl(worker.identity.id, *gap)
        watch.tokens_left(*gap)
    elif first and meter.tokens:
        watch.first_token()
        worker.telemetry.ttft(request.prefill_worker, meter.ttft_s)


async def _kept(
    worker: Worker, request: DecodeRequest, output: EngineOutput, generated: list[int], ledger: bytes, prompt: Match
) -> Handle | None:
    """The handle to the pin that the last output carries, over the prompt, whose ledger this is, and the answer."""
    if output.ref is None:
        return None
    tokens, size = output.pinned_tokens, worker.block_size
    if tokens >= prompt.tokens:
        more = [*request.token_ids[prompt.tokens :], *generated][: tokens - prompt.tokens]
        ledger = grow(ledger, prompt, more, size)
    else:
        ledger = build(request.token_ids[:tokens], size)
    return await worker.issue(request.id, request.session, output, ledger)


def _choices(request: DecodeRequest) -> int:
    options = request.request.get("sampling_options") or {}
    return int(options.get("n") or 1)


def _cache_salt(request: DecodeRequest) -> str | None:
    salt = (request.request.get("routing") or {}).get("cache_salt")
    return None if salt is None else str(salt)


def _stats(request: DecodeRequest, meter: RoundMeter, output: EngineOutput, queued_s: float, recompute: str | None) -> RoundStats:
    kv = output.kv or KvFacts()
    return RoundStats(
        ttft_s=meter.ttft_s,
        itl_s=meter.itl_s,
        tokens_out=meter.tokens,
        queue_s=queued_s,
        read_s=kv.read_s,
        read_tokens=kv.read_tokens,
        cached_tokens=kv.cached_tokens,
        history_tokens=min(request.l_hist, kv.cached_tokens) if request.path == "local" else 0,
        recompute="read_failed" if kv.read_failed else recompute,
    )
