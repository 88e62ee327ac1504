"""A decode engine is killed while its history is being read, and under a job."""

from __future__ import annotations

import asyncio

import psutil
import pytest
from engine_pair import Pair, Session, engine, free_ports, frozen, prompt, request, run, started, until

from ampd.config import Graph
from ampd.errors import EngineDead


async def test_a_killed_decode_engine_costs_its_reader_a_recompute(pair: Pair, pair_graph: Graph) -> None:
    """Stock vLLM's reader waits for ever after a failed read."""
    doomed = engine(pair_graph, "decode", free_ports(1)[0])
    async with started(doomed):
        there = Pair(pair.prefill, doomed)
        known = Session(there)
        await known.round("local", prompt(300, 109))
        await known.round("remote", prompt(40, 109))  # the engines have shaken hands
        session = Session(there)
        await session.round("local", prompt(3000, 110))
        session.tokens += prompt(100, 111)
        decoding = asyncio.create_task(run(doomed, kind="decode", token_ids=prompt(64, 112), request=request(7000)))
        await until(lambda: doomed.load().running == 1, "it decodes")
        with frozen(doomed):
            reading = asyncio.create_task(session.prefill(session.handle))
            await until(lambda: pair.prefill.load().kv_used > 0, "the blocks to read into are held")
            for process in doomed._processes:
                process.kill()
        with pytest.raises(EngineDead):
            await asyncio.wait_for(decoding, 20)
        await asyncio.wait_for(doomed.wait_dead(), 20)
        on_p = await asyncio.wait_for(reading, 60)
        assert on_p.last.kv is not None
        assert on_p.last.kv.read_failed
        assert on_p.last.kv.read_tokens == 0
    assert not [p for p in doomed._processes if psutil.pid_exists(p.pid) and p.status() != psutil.STATUS_ZOMBIE]

    result = await run(pair.decode, kind="decode", token_ids=session.tokens, request=request(8), source=on_p.last.params, pin=False)
    right = await run(pair.decode, kind="decode", token_ids=session.tokens, request=request(8), pin=False, cache_salt="right-110")
    assert result.tokens == right.tokens


async def test_an_engine_that_was_not_started_says_so(pair_graph: Graph) -> None:
    idle = engine(pair_graph, "decode", free_ports(1)[0])
    with pytest.raises(EngineDead, match="not running"):
        await run(idle, kind="decode", token_ids=[5], request=request(1))
    await idle.release(["nothing"])
    await idle.stop()
