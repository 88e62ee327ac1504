"""A job that decodes can be told to finish: it ends at its next token, and its KV is history like any other's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from engine_pair import Pair, Session, prompt, request, run, until
from plain_engine import SESSIONS, TOKENS

from ampd.workers.kv.scheduler import FINISH

LONG = 4000  # tokens that no test waits for


@pytest.mark.parametrize("name", SESSIONS)
@pytest.mark.parametrize("paths", ["lllll", "rrrrr", "lrlrl", "rllrr"])
async def test_rounds_that_finish_early_are_right_and_so_are_those_that_follow(
    pair: Pair, reference: dict[str, list[list[int]]], paths: str, name: str
) -> None:
    """Every answer is cut to the tokens that the plain engine gave, as at a stop string: the KV of some more is pinned."""
    session = Session(pair)
    answers = []
    for path, increment in zip(paths, SESSIONS[name], strict=True):
        before = session.handle
        tokens, result, on_p = await session.round("local" if path == "l" else "remote", increment, LONG, TOKENS)
        assert TOKENS < len(tokens) < LONG / 4
        assert result.last.output["finish_reason"] == "length"
        assert result.last.pinned_tokens == len(session.tokens) - 1  # the last token has no KV yet
        if before is not None:
            reader = (on_p or result).last.kv
            assert reader is not None
            assert reader.read_tokens + reader.cached_tokens >= before.pinned_tokens // 32 * 32
        del session.tokens[len(session.tokens) - len(tokens) + TOKENS :]
        session.handle = replace(result.last, pinned_tokens=len(session.tokens))
        answers.append(tokens[:TOKENS])
    assert answers == reference[name]
    await session.close()


async def test_before_its_first_token_a_job_is_aborted(pair: Pair) -> None:
    job = asyncio.create_task(run(pair.decode, id="early", kind="decode", token_ids=prompt(6000, 301), request=request(LONG)))
    await until(lambda: pair.decode.load().kv_used > 1500, "the prompt is being computed")
    await pair.decode.finish("early")
    result = await asyncio.wait_for(job, 30)
    assert (result.tokens, result.last.output["finish_reason"], result.last.ref) == ([], "cancelled", None)
    await pair.idle()


async def test_a_job_that_is_just_being_submitted_is_aborted(pair: Pair) -> None:
    job = asyncio.create_task(run(pair.decode, id="new", kind="decode", token_ids=prompt(300, 302), request=request(LONG)))
    while "new" not in pair.decode._jobs:
        await asyncio.sleep(0)
    await pair.decode.finish("new")
    result = await asyncio.wait_for(job, 30)
    assert (result.tokens, result.last.output["finish_reason"], result.last.ref) == ([], "cancelled", None)
    await pair.idle()


@pytest.mark.parametrize("stop", [{}, {"min_tokens": LONG}], ids=["", "min_tokens"])
async def test_twice_is_once(pair: Pair, stop: dict[str, Any]) -> None:
    asked = request(LONG, stop_conditions={"max_tokens": LONG, **stop})
    job = asyncio.create_task(run(pair.decode, id="twice", kind="decode", token_ids=prompt(100, 303), request=asked))
    await begun(pair, "twice")
    await pair.decode.finish("twice")
    await pair.decode.finish("twice")
    result = await asyncio.wait_for(job, 30)
    assert result.last.output["finish_reason"] == "length"
    assert result.last.pinned_tokens == 100 + len(result.tokens) - 1 < LONG / 4
    await pair.decode.release([result.last.ref or ""])


async def test_an_abort_of_a_job_that_finishes_leaves_no_pin(pair: Pair) -> None:
    job = asyncio.create_task(run(pair.decode, id="both", kind="decode", token_ids=prompt(100, 304), request=request(LONG)))
    await begun(pair, "both")
    await pair.decode.finish("both")
    await pair.decode.abort("both")
    assert (await asyncio.wait_for(job, 30)).last.ref is None
    await pair.idle()


async def test_what_is_unknown_or_has_ended_is_left_alone(pair: Pair) -> None:
    session = Session(pair)
    _, result, _ = await session.round("local", prompt(100, 305))
    await pair.decode.finish("unknown")
    await pair.decode._tell([f"{FINISH}unknown", f"{FINISH}{result.last.ref}"])  # the job has ended meanwhile, in the engine
    await asyncio.sleep(0.5)
    assert pair.decode.load().kv_used == 128, "the pin stands"
    _, after, on_p = await session.round("remote", prompt(40, 306))
    assert on_p is not None
    assert on_p.last.kv is not None
    assert on_p.last.kv.read_tokens == 96
    assert after.last.output["finish_reason"] == "length"
    await session.close()


async def begun(pair: Pair, job: str) -> None:
    await until(lambda: job in pair.decode._jobs and pair.decode._jobs[job].begun, "it has a token")
