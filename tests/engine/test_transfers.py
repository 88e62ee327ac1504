"""What is read, when, and how much of it."""

from __future__ import annotations

import asyncio
import math
from typing import Any

from engine_pair import BLOCK, Pair, Result, Session, prompt, request, run, until

from ampd.workers.engines.base import KvFacts


def facts(result: Result) -> KvFacts:
    assert result.last.kv is not None
    return result.last.kv


def blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)


async def plain_tokens(pair: Pair, token_ids: list[int], count: int = 8) -> list[int]:
    """A local round without history; test_rounds shows that it equals stock vLLM."""
    result = await run(
        pair.decode, kind="decode", token_ids=token_ids, request=request(count), pin=False, cache_salt=f"plain-{token_ids[:4]}"
    )
    return result.tokens


async def test_the_decode_worker_reads_only_the_increment(pair: Pair) -> None:
    session = Session(pair)
    await session.round("remote", prompt(1000, 1))
    before = pair.decode.transfers.bytes
    _, on_d, _ = await session.round("remote", prompt(300, 2))
    kv = facts(on_d)
    assert kv.cached_tokens == 1007 // BLOCK * BLOCK
    assert kv.read_tokens == 1308 - kv.cached_tokens
    await until(lambda: pair.decode.transfers.bytes > before, "the transport's telemetry")
    assert pair.decode.transfers.bytes - before == blocks(kv.read_tokens) * BLOCK * pair.decode.info.kv_bytes_per_token
    await session.close()


async def test_the_prefill_worker_reads_only_what_its_own_cache_lacks(pair: Pair) -> None:
    session = Session(pair)
    await session.round("remote", prompt(1000, 3))
    await session.round("local", prompt(300, 4))
    before = pair.prefill.transfers.bytes
    _, _, on_p = await session.round("remote", prompt(50, 5))
    assert on_p is not None
    kv = facts(on_p)
    held = (1000 + 8 + 300 + 8 - 1) // BLOCK * BLOCK
    assert (kv.cached_tokens, kv.read_tokens) == (1000 // BLOCK * BLOCK, held - 1000 // BLOCK * BLOCK)
    await until(lambda: pair.prefill.transfers.bytes > before, "the transport's telemetry")
    assert pair.prefill.transfers.bytes - before == kv.read_tokens * pair.prefill.info.kv_bytes_per_token
    await session.close()


async def test_usage_counts_as_cached_what_no_worker_computed_in_this_round(pair: Pair) -> None:
    session = Session(pair)
    await session.round("local", prompt(400, 6))
    _, on_d, on_p = await session.round("remote", prompt(100, 7))
    assert on_p is not None
    assert facts(on_p).cached_tokens + facts(on_p).read_tokens == 384
    usage = on_d.last.output["completion_usage"]
    assert usage == {
        "prompt_tokens": 508,
        "completion_tokens": 8,
        "total_tokens": 516,
        "prompt_tokens_details": {"cached_tokens": 384},
    }
    await session.close()


async def test_the_next_history_is_read_while_the_task_before_it_computes(pair: Pair) -> None:
    sessions = [Session(pair) for _ in range(3)]
    for i, session in enumerate(sessions):
        await session.round("local", prompt(2500, 10 + i), 2)
    for i, session in enumerate(sessions):
        session.tokens += prompt(3000, 20 + i)
    ends = await asyncio.gather(*(session.prefill(session.handle) for session in sessions))
    first, second, third = (facts(end) for end in ends)
    assert all(kv.read_tokens == 2501 // BLOCK * BLOCK for kv in (first, second, third))

    # Lazy: the second reads only once the first has what it needs to compute, the third only when the first is done.
    assert (second.read_started_at or 0) >= (first.read_ended_at or math.inf)
    assert (third.read_started_at or 0) >= ends[0].ended_at - 0.1
    for before_end, after in ((ends[0], second), (ends[1], third)):
        assert after.read_ended_at is not None
        assert after.compute_started_at is not None
        # Ahead: a task has its history before its predecessor ends. One computes at a time.
        assert after.read_ended_at < before_end.ended_at
        assert after.compute_started_at >= before_end.ended_at - 0.1
    for end in ends:
        await pair.prefill.release([end.last.ref or ""])


async def test_a_task_with_nothing_to_read_still_waits_for_its_turn(pair: Pair) -> None:
    session = Session(pair)
    await session.round("remote", prompt(320, 25), 1)  # the prefill worker keeps it all in its own cache
    session.tokens += prompt(200, 26)
    before = asyncio.create_task(run(pair.prefill, kind="prefill", token_ids=prompt(6000, 27)))
    await until(lambda: pair.prefill.load().running == 1, "the first task computes")
    after = await session.prefill(session.handle)
    ended = (await before).ended_at
    assert facts(after).cached_tokens == 320
    assert (facts(after).compute_started_at or 0) >= ended - 0.1
    for end in (await before, after):
        await pair.prefill.release([end.last.ref or ""])


async def test_a_shorter_history_reads_the_leading_blocks_and_ends_the_whole_pin(pair: Pair) -> None:
    session = Session(pair)
    await session.round("local", prompt(500, 30))
    handle = session.handle
    assert handle is not None
    rewritten = session.tokens[:200] + prompt(150, 31)
    result = await run(
        pair.prefill, kind="prefill", token_ids=rewritten, source=handle.params, source_tokens=192, cache_salt=session.salt
    )
    assert facts(result).read_tokens == 192
    await until(lambda: pair.decode.load().kv_used == 0, "the pin on the decode worker has ended")
    await pair.decode.reset_prefix_cache()
    answer = await run(
        pair.decode, kind="decode", token_ids=rewritten, request=request(8), source=result.last.params, pin=False, cache_salt="new"
    )
    assert answer.tokens == await plain_tokens(pair, rewritten)
    assert facts(answer).read_tokens == len(rewritten)


async def test_a_history_that_need_not_be_read_ends_its_pin_too(pair: Pair) -> None:
    session = Session(pair)
    await session.round("remote", prompt(320, 32), 1)  # the prefill worker keeps 320 tokens in its cache
    assert session.handle is not None
    assert session.handle.pinned_tokens == 320
    session.tokens += prompt(100, 33)
    result = await session.prefill(session.handle)
    assert (facts(result).read_tokens, facts(result).cached_tokens) == (0, 320)
    await until(lambda: pair.decode.load().kv_used == 0, "the pin on the decode worker has ended")
    await pair.prefill.release([result.last.ref or ""])


async def test_a_history_below_the_threshold_is_computed_and_ends_its_pin(pair: Pair) -> None:
    session = Session(pair)
    await session.round("local", prompt(100, 34))
    assert session.handle is not None
    session.tokens += prompt(40, 35)
    result = await run(
        pair.prefill, kind="prefill", token_ids=session.tokens, source=session.handle.params, source_tokens=31, cache_salt="other"
    )
    assert (facts(result).read_tokens, facts(result).cached_tokens) == (0, 0)
    await until(lambda: pair.decode.load().kv_used == 0, "the pin on the decode worker has ended")
    await pair.prefill.release([result.last.ref or ""])


async def test_a_decode_worker_that_lost_its_history_reads_it_all(pair: Pair) -> None:
    session = Session(pair)
    await session.round("remote", prompt(500, 36))
    session.tokens += prompt(100, 37)
    on_p = await session.prefill(session.handle)
    await until(lambda: pair.decode.load().kv_used == 0, "the pin on the decode worker has ended")
    await pair.decode.reset_prefix_cache()
    result = await run(
        pair.decode,
        kind="decode",
        token_ids=session.tokens,
        request=request(8),
        source=on_p.last.params,
        pin=False,
        cache_salt=session.salt,
    )
    assert facts(result).read_tokens == len(session.tokens)
    assert result.tokens == await plain_tokens(pair, session.tokens)


async def test_an_unusable_source_is_recomputed_and_its_pin_ends(pair: Pair) -> None:
    token_ids = prompt(200, 38)
    right = await plain_tokens(pair, token_ids)

    async def answer(spoil: dict[str, Any]) -> Result:
        on_p = await run(pair.prefill, kind="prefill", token_ids=token_ids)
        assert on_p.last.params is not None
        await pair.decode.reset_prefix_cache()
        source = {**on_p.last.params, **spoil}
        return await run(pair.decode, kind="decode", token_ids=token_ids, request=request(8), source=source, pin=False)

    for spoil in ({"remote_num_tokens": 150}, {"remote_block_ids": [[1, 2]]}, {"remote_block_ids": None}):
        result = await answer(spoil)
        assert result.tokens == right, spoil
        assert facts(result).read_tokens == 0, spoil
        await until(lambda: pair.prefill.load().kv_used == 0, f"the pin on the prefill worker has ended, {spoil}", 10)


async def test_several_choices_read_nothing_twice(pair: Pair) -> None:
    before = pair.decode.transfers.reads
    result = await run(
        pair.decode,
        kind="decode",
        token_ids=prompt(100, 39),
        request=request(6, sampling_options={"n": 3, "temperature": 1.0, "seed": 7}),
        pin=False,
    )
    choices = {
        index: [t for o in result.outputs if o.output["index"] == index for t in o.output["token_ids"]] for index in range(3)
    }
    assert [len(tokens) for tokens in choices.values()] == [6, 6, 6]
    assert len({tuple(tokens) for tokens in choices.values()}) > 1
    assert result.last.ref is None
    assert pair.decode.transfers.reads == before
