"""Every pin ends: by a read, by name, or with a following job; also on an engine that has nothing else to do."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
from engine_pair import BLOCK, Pair, Session, prompt, request, run, until

from ampd.errors import RequestError


async def local(pair: Pair, length: int, seed: int, **job: object) -> str:
    result = await run(pair.decode, kind="decode", token_ids=prompt(length, seed), request=request(4), **job)
    assert result.last.ref is not None
    assert result.last.pinned_tokens == length + 3  # the last token has no KV yet
    assert result.last.expires_at > time.time() + 100
    return result.last.ref


async def test_a_locally_computed_turn_is_pinned_and_released(pair: Pair) -> None:
    """Stock vLLM never frees such a pin: its worker does not follow the request."""
    ref = await local(pair, 400, 50)
    await asyncio.sleep(0.5)
    assert pair.decode.load().kv_used == -(-403 // BLOCK) * BLOCK
    await pair.decode.release([ref])
    await until(lambda: pair.decode.load().kv_used == 0, "the pin has ended")


async def test_a_pin_is_released_by_the_job_that_follows(pair: Pair) -> None:
    ref = await local(pair, 400, 51)
    await run(pair.decode, kind="decode", token_ids=prompt(64, 52), request=request(4), pin=False, release=[ref])
    await until(lambda: pair.decode.load().kv_used == 0, "the pin has ended")


async def test_releasing_what_is_unknown_or_has_ended_is_nothing(pair: Pair) -> None:
    ref = await local(pair, 100, 53)
    await pair.decode.release(["unknown", ref, ref])
    await pair.decode.release([ref])
    await until(lambda: pair.decode.load().kv_used == 0, "the pin has ended")


async def test_a_pinned_history_outlives_a_cleared_cache(pair: Pair) -> None:
    session = Session(pair)
    await session.round("local", prompt(320, 54), 1)
    await pair.decode.reset_prefix_cache()
    _, result, _ = await session.round("local", prompt(32, 55))
    assert result.last.kv is not None
    assert result.last.kv.cached_tokens == 320
    await session.close()


async def test_a_read_pin_ends_on_an_engine_at_rest(pair: Pair) -> None:
    session = Session(pair)
    await session.round("local", prompt(640, 56))
    session.tokens += prompt(64, 57)
    result = await session.prefill(session.handle)
    await until(lambda: pair.decode.load().kv_used == 0, "the read has ended the pin", 5)
    await pair.prefill.release([result.last.ref or ""])


async def test_a_refused_round_uses_up_its_source_and_its_releases(pair: Pair) -> None:
    ref = await local(pair, 100, 58)
    on_p = await run(pair.prefill, kind="prefill", token_ids=prompt(200, 59))
    bad = request(4, stop_conditions={"max_tokens": 4, "min_tokens": 9})
    with pytest.raises(RequestError, match="min_tokens"):
        await run(
            pair.decode, kind="decode", token_ids=prompt(200, 59), request=bad, source=on_p.last.params, release=[ref], pin=True
        )
    await pair.idle()


async def test_pins_cost_no_core(pair: Pair) -> None:
    """Stock: NIXL's progress thread takes a core an engine, and pins keep the engine stepping at full speed."""
    ref = await local(pair, 400, 60)
    await asyncio.sleep(1.0)
    engines = [process for engine in (pair.prefill, pair.decode) for process in engine._processes]
    started, before = time.monotonic(), [sum(p.cpu_times()[:2]) for p in engines]
    await asyncio.sleep(3.0)  # the engines' owner polls them meanwhile
    used = [(p.name(), round(sum(p.cpu_times()[:2]) - start, 2)) for p, start in zip(engines, before, strict=True)]
    # Of the time that has really passed: on a busy machine a sleep is longer, and a thread that spins gets less of a core.
    assert sum(cpu for _, cpu in used) / (time.monotonic() - started) < 0.5, used
    await pair.decode.release([ref])


async def test_engines_compute_on_their_own_cores(pair: Pair) -> None:
    """Stock: making the NIXL worker moves the thread that computes to the machine's last core, every engine's."""
    cores = {}
    for role, engine in (("prefill", pair.prefill), ("decode", pair.decode)):
        workers = [process for process in engine._processes if "Worker" in process.name()]
        assert len(workers) == 1, [process.name() for process in engine._processes]
        cores[role] = os.sched_getaffinity(workers[0].pid)  # of its main thread
    assert cores == {"prefill": {0}, "decode": {1}}
