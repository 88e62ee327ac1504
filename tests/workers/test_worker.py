"""A worker's rounds at the moments where something can be lost: a cancellation, a refused claim, a full KV pool, a stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from scripted_engine import BLOCK, ScriptedEngine
from worker_cases import PROMPT, Peer, Telemetry, decode_request, history, make, play, prefill_request

from ampd.errors import RoundCancelled, WorkerError, WorkerGone
from ampd.ledger import build, chain_at
from ampd.messages import KvReply, KvRequest, PrefillResult
from ampd.workers.decode import serve_decode
from ampd.workers.prefill import serve_prefill


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    scripted = ScriptedEngine()
    yield scripted
    assert scripted.live == {}, "every job has ended"


async def test_a_claimed_history_is_the_jobs_source(engine: ScriptedEngine) -> None:
    peer = Peer()
    result = await serve_prefill(make("prefill", engine), peer, prefill_request(held=history()))
    assert (peer.asked[0].tokens, peer.asked[0].chain) == (12, chain_at(build(PROMPT, BLOCK), 12, BLOCK))
    assert (engine.jobs[0].source, engine.jobs[0].source_tokens) == ({"from": "d"}, 12)
    assert (result.recompute, result.handle.tokens, result.handle.epoch) == (None, 16, "epoch")


@pytest.mark.parametrize(
    ("peer", "cause"),
    [
        (Peer(lambda request: KvReply(ok=False, cause="epoch")), "epoch"),
        (Peer(error=WorkerGone("dead")), "unreachable"),
    ],
)
async def test_an_unconfirmed_history_is_recomputed_and_counted(engine: ScriptedEngine, peer: Peer, cause: str) -> None:
    worker = make("prefill", engine)
    result = await serve_prefill(worker, peer, prefill_request(held=history()))
    assert engine.jobs[0].source is None
    assert result.recompute == cause
    assert worker.counters.recomputes == {cause: 1}


async def test_a_client_that_leaves_during_the_claim_costs_no_job(engine: ScriptedEngine) -> None:
    worker, peer = make("prefill", engine), Peer()
    peer.go_on.clear()
    running = asyncio.create_task(serve_prefill(worker, peer, prefill_request(held=history())))
    await peer.arrived.wait()
    leaving = asyncio.create_task(worker.cancel("r"))
    await asyncio.sleep(0)
    peer.go_on.set()
    with pytest.raises(RoundCancelled):
        await running
    await leaving
    assert engine.jobs == []


async def test_a_client_that_leaves_during_the_job_stops_it(engine: ScriptedEngine) -> None:
    worker = make("prefill", engine)
    engine.gate.clear()
    running = asyncio.create_task(serve_prefill(worker, Peer(), prefill_request()))
    while not engine.jobs:
        await asyncio.sleep(0)
    await worker.cancel("r")
    with pytest.raises(RoundCancelled):
        await running
    assert engine.pinned == set()


async def test_a_torn_down_reader_leaves_no_job_and_no_pin(engine: ScriptedEngine) -> None:
    """The task itself is cancelled when the process stops; the pin of a job that ended in that tick is released."""
    worker = make("prefill", engine)
    running = asyncio.create_task(serve_prefill(worker, Peer(), prefill_request()))
    while not engine.pinned:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert engine.pinned == set()
    assert len(worker.pins) == 0


async def test_a_pin_for_a_client_that_has_left_is_released(engine: ScriptedEngine) -> None:
    worker = make("decode", engine)
    chunks = serve_decode(worker, decode_request())
    await anext(chunks)
    leaving = asyncio.create_task(worker.cancel("r"))
    await asyncio.sleep(0)
    with pytest.raises(RoundCancelled):
        [chunk async for chunk in chunks]
    await leaving
    assert engine.pinned == set()
    assert len(worker.pins) == 0


async def test_a_served_round_swaps_its_sessions_pin(engine: ScriptedEngine) -> None:
    worker = make("decode", engine)
    first = (await play(worker, decode_request("one", token_ids=PROMPT[:12])))[-1]
    assert first.handle is not None
    assert first.handle.tokens == 14  # the last of three tokens has no KV
    longer = [*PROMPT[:12], 50, 51, 52, 7, 8, 9]
    second = (await play(worker, decode_request("two", held=first.handle, token_ids=longer)))[-1]
    assert second.stats is not None
    assert second.stats.recompute is None
    assert second.handle is not None
    assert engine.pinned == {second.handle.ref}
    assert second.handle.chain == chain_at(build([*longer, 50, 51], BLOCK), 20, BLOCK)


async def test_a_local_round_with_anothers_history_says_so(engine: ScriptedEngine) -> None:
    worker = make("decode", engine)
    first = (await play(worker, decode_request("one")))[-1]
    assert first.handle is not None
    stolen = decode_request("two", session="other", held=first.handle)
    last = (await play(worker, stolen))[-1]
    assert last.stats is not None
    assert last.stats.recompute == "session"
    assert first.handle.ref in engine.pinned


async def test_a_remote_round_with_an_unfit_handle_computes_the_prompt(engine: ScriptedEngine) -> None:
    worker = make("decode", engine)
    result: PrefillResult = await serve_prefill(make("prefill", engine), Peer(), prefill_request())
    other = [1, *PROMPT[1:]]
    last = (await play(worker, decode_request(path="remote", prefill=result.handle, token_ids=other)))[-1]
    assert last.stats is not None
    assert last.stats.recompute == "prefix"
    assert engine.jobs[-1].source is None


async def test_ttft_counts_for_the_prefill_worker_and_from_the_arrival(engine: ScriptedEngine) -> None:
    worker = make("decode", engine)
    await play(worker, decode_request(prefill_worker=77))
    telemetry = worker.telemetry
    assert isinstance(telemetry, Telemetry)
    [(id, seconds)] = telemetry.ttfts
    assert id == 77
    assert 0.5 <= seconds < 5
    assert telemetry.gaps == 2


async def test_one_local_prefill_at_a_time_until_its_first_token(engine: ScriptedEngine) -> None:
    worker = make("decode", engine)
    engine.gate.clear()
    rounds = [asyncio.create_task(play(worker, decode_request(f"r{i}", session=f"s{i}"))) for i in range(3)]
    await asyncio.sleep(0.01)
    assert [job.id for job in engine.jobs] == ["r0"]
    assert [task.id for task in worker.queue.waiting] == ["r1", "r2"]
    engine.gate.set()
    await asyncio.gather(*rounds)
    assert len(engine.jobs) == 3


async def test_a_round_that_does_not_fit_takes_the_oldest_pins(engine: ScriptedEngine) -> None:
    worker = make("decode", engine)
    handles = [(await play(worker, decode_request(f"r{i}", session=f"s{i}")))[-1].handle for i in range(3)]
    engine.used = engine.info.kv_total - 5
    await worker.make_room(16, session="s0")
    assert [h.ref in engine.pinned for h in handles if h is not None] == [True, False, True]
    assert worker.counters.shed_pins == 1
    refused = await worker.kv(KvRequest(op="claim", handle=handles[1], tokens=12, chain=chain_at(build(PROMPT, BLOCK), 12, BLOCK)))
    assert refused == KvReply(ok=False, cause="unknown")


async def test_pressure_and_expiry_end_pins_without_a_round(engine: ScriptedEngine) -> None:
    worker = make("decode", engine)
    await play(worker, decode_request())
    maintaining = asyncio.create_task(worker.maintain(0.01))
    await asyncio.sleep(0.05)
    assert len(engine.pinned) == 1
    engine.used = int(engine.info.kv_total * 0.95)
    await asyncio.sleep(0.05)
    assert engine.pinned == set()
    maintaining.cancel()


async def test_a_claimed_pin_outlives_its_release(engine: ScriptedEngine) -> None:
    worker = make("decode", engine)
    handle = (await play(worker, decode_request()))[-1].handle
    assert handle is not None
    chain = chain_at(build(PROMPT, BLOCK), 12, BLOCK)
    assert (await worker.kv(KvRequest(op="claim", handle=handle, tokens=12, chain=chain))).ok
    await worker.kv(KvRequest(op="release", handle=handle))
    assert handle.ref in engine.pinned, "a transfer may be under way"
    await worker.kv(KvRequest(op="abandon", id="r"))
    assert handle.ref in engine.pinned


async def test_an_abandoned_round_gives_its_pin_back(engine: ScriptedEngine) -> None:
    worker = make("decode", engine)
    await play(worker, decode_request("lost"))
    await worker.kv(KvRequest(op="abandon", id="lost"))
    await worker.kv(KvRequest(op="abandon", id="lost"))
    assert engine.pinned == set()


async def test_a_round_runs_once_at_a_time(engine: ScriptedEngine) -> None:
    worker = make("decode", engine)
    engine.gate.clear()
    running = asyncio.create_task(play(worker, decode_request()))
    await asyncio.sleep(0.01)
    with pytest.raises(WorkerError, match="already running"):
        await play(worker, decode_request())
    engine.gate.set()
    await running


async def test_draining_waits_for_what_runs_and_not_for_ever(engine: ScriptedEngine) -> None:
    worker = make("decode", engine)
    engine.gate.clear()
    running = asyncio.create_task(play(worker, decode_request()))
    await asyncio.sleep(0.01)
    await worker.drain(0.05)
    assert worker.row().draining
    assert not running.done()
    engine.gate.set()
    await worker.drain(5)
    assert running.done() or worker.queue.waiting == []
    await running
