"""A decode worker's engine prefills for another worker, beside its own batch; and what engines tell of their load meanwhile.

The engines change roles: the one with the prefill worker's scheduler keeps the session, the one with the decode worker's prefills.
"""

from __future__ import annotations

import asyncio

import pytest
from engine_pair import BLOCK, Pair, Session, frozen, prompt, request, run, until
from plain_engine import SESSIONS, TOKENS

from ampd.workers.engines.vllm import VllmEngine


@pytest.fixture
def swapped(pair: Pair) -> Pair:
    return Pair(prefill=pair.decode, decode=pair.prefill)


async def answer(engine: VllmEngine, token_ids: list[int], count: int, **job: object) -> list[int]:
    result = await run(engine, kind="decode", token_ids=token_ids, request=request(count), pin=False, **job)
    return result.tokens


@pytest.mark.parametrize("paths", ["rrrrr", "lrlrr"])
@pytest.mark.parametrize("name", SESSIONS)
async def test_tokens_equal_a_plain_engine(swapped: Pair, reference: dict[str, list[list[int]]], name: str, paths: str) -> None:
    session = Session(swapped)
    answers = []
    for path, increment in zip(paths, SESSIONS[name], strict=True):
        tokens, _, _ = await session.round("remote" if path == "r" else "local", increment, TOKENS)
        answers.append(tokens)
    await session.close()
    assert answers == reference[name]


async def test_a_deflected_prefill_reads_only_what_its_own_cache_lacks(swapped: Pair) -> None:
    session = Session(swapped)
    await session.round("remote", prompt(1000, 400))
    await session.round("local", prompt(300, 401))
    _, _, first = await session.round("remote", prompt(50, 402))
    assert first is not None
    assert first.last.kv is not None
    held = (1000 + 8 + 300 + 8 - 1) // BLOCK * BLOCK
    assert (first.last.kv.cached_tokens, first.last.kv.read_tokens) == (1000 // BLOCK * BLOCK, held - 1000 // BLOCK * BLOCK)
    await session.close()


async def test_beside_a_batch_without_slack_it_ends_and_nobodys_tokens_change(swapped: Pair) -> None:
    """The smallest chunks there are, with a history to read, beside requests whose target cannot be met."""
    prompts, long = [prompt(100, 410 + i) for i in range(3)], [prompt(600, 420), prompt(500, 421)]
    alone = [await answer(swapped.prefill, p, 60, cache_salt="alone") for p in prompts]
    session = Session(swapped)
    first, _, _ = await session.round("local", long[0])
    batch = [asyncio.create_task(answer(swapped.prefill, p, 60, cache_salt="beside", itl_target_s=1e-4)) for p in prompts]
    await until(lambda: swapped.prefill.load().running == 3, "the batch decodes")
    tokens, _, on_p = await session.round("remote", long[1])
    assert [await task for task in batch] == alone
    assert on_p is not None
    assert on_p.last.kv is not None
    assert on_p.last.kv.read_tokens == 607 // BLOCK * BLOCK
    whole = long[0] + first + long[1]
    assert tokens == await answer(swapped.decode, whole, 8, cache_salt="whole")
    await session.close()


async def test_the_load_counts_context_blocks_written_and_reads_under_way(pair: Pair) -> None:
    engine = pair.decode
    before = engine.load().kv_written
    job = asyncio.create_task(answer(engine, prompt(1000, 430), 200))
    await until(lambda: engine.load().context > 1000, "a running request's context")
    await job
    await until(lambda: engine.load().context == 0, "nothing runs")
    assert engine.load().kv_written - before == -(-1199 // BLOCK) * BLOCK
    again = engine.load().kv_written
    await answer(engine, prompt(1000, 430), 1)
    assert engine.load().kv_written - again == BLOCK, "what the cache holds is not written again"


async def test_a_read_under_way_is_owed_by_the_link(pair: Pair) -> None:
    session = Session(pair)
    await session.round("local", prompt(3000, 440))
    await session.round("remote", prompt(40, 441))  # the engines have shaken hands
    await session.round("local", prompt(3000, 442))
    session.tokens += prompt(40, 443)
    with frozen(pair.decode):
        job = asyncio.create_task(session.prefill(session.handle))
        await until(lambda: pair.prefill.load().link_s > 0.2, "a stuck read is owed more and more")
    result = await job
    await until(lambda: pair.prefill.load().link_s == 0, "nothing is owed")
    await pair.prefill.release([result.last.ref or ""])
