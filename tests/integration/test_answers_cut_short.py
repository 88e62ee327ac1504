"""Answers that end before the engine thinks so, at a stop string or because the client leaves: they are history all the same."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import aiohttp
from whole_graph import Session, WholeGraph, words

from ampd.bench.rounds import RoundRequest, RoundResult
from ampd.bench.stream import AnswerReader, events

BLOCK, PROMPT, ANSWER = 32, 150, 2000


def ends(graph: WholeGraph) -> dict[str, dict[str, Any]]:
    """The Coordinators' lines on rounds that are over, by round."""
    logs = (graph.running.run_dir / "logs").glob("coordinator-*.log")
    mark = '{"event":"ampd.round"'
    lines = [mark + line.split(mark)[1] for log in logs for line in log.read_text().splitlines() if mark in line]
    return {end["id"]: end for end in map(json.loads, lines)}


async def left(graph: WholeGraph, before: dict[str, Any]) -> dict[str, Any]:
    """The line on the one round that has been left since. Lines of rounds that were served before may still be on their way."""
    async with asyncio.timeout(20):
        while not (new := [e for id, e in ends(graph).items() if id not in before and e["outcome"] != "served"]):
            await asyncio.sleep(0.05)
    (end,) = new
    assert end["outcome"] in ("cancelled", "abandoned")
    assert end["error"] is None
    assert end["ttft_s"] > 0, "it is measured like others"
    assert end["tokens_out"] < ANSWER / 2
    return end


async def goes_on(session: Session, kept: list[int], end: dict[str, Any]) -> None:
    """The next round has the history of the prompt and of the tokens that the client keeps, as far as they have KV."""
    held = PROMPT + min(len(kept), end["tokens_out"] - 1)
    assert held // BLOCK > PROMPT // BLOCK, "the test needs an answer of some blocks"
    session.tokens = session.tokens[:PROMPT] + kept
    again = await session.round(words(70, 91))
    assert again.facts is not None
    assert (again.facts.l_hist, again.facts.round) == (held // BLOCK * BLOCK, 2)
    assert again.facts.recompute is None
    fresh = Session(session._graph, session.tokens[: again.prompt_tokens])
    assert (await fresh.round()).token_ids == again.token_ids
    await fresh.end()
    await session.end()


def stop_string(plain: RoundResult) -> str:
    """A piece of an answer, somewhat beyond its middle, that is not in it before."""
    text = plain.text
    for start in range(len(text) * 6 // 10, len(text) - 8):
        if text.find(text[start : start + 8]) == start and text[start : start + 8].isprintable():
            return text[start : start + 8]
    raise AssertionError(f"no piece of the answer stands once in it: {text!r}")


async def test_an_answer_that_a_stop_string_ends_is_history(graph: WholeGraph) -> None:
    prompt = words(PROMPT, 90)
    # Without `ignore_eos`, which in Dynamo drops stop strings too.
    plain = await graph.client.send(RoundRequest(prompt=prompt, max_tokens=120, number=1))
    assert plain.completion_tokens == 120
    stop, before = stop_string(plain), ends(graph)
    session = Session(graph, prompt)
    asked = RoundRequest(prompt=prompt, max_tokens=ANSWER, session=session.name, number=1, extra={"stop": [stop]})
    cut = await graph.client.send(asked)
    assert cut.error is None
    assert cut.finish_reason == "stop"
    assert cut.text == plain.text[: plain.text.index(stop)]
    end = await left(graph, before)
    kept = plain.token_ids[:64]  # well before the stop string
    await goes_on(session, kept, end)


async def test_an_answer_that_the_client_leaves_is_history(graph: WholeGraph) -> None:
    before = ends(graph)
    session = Session(graph, words(PROMPT, 92))
    body = {
        "model": "tiny",
        "prompt": session.tokens,
        "max_tokens": ANSWER,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "nvext": {"extra_fields": ["completion_token_ids"]},
    }
    reader = AnswerReader(RoundResult(session=session.name, number=1), time.perf_counter())
    headers = {"x-dynamo-session-id": session.name}
    async with aiohttp.ClientSession() as http, http.post(f"{graph.url}/v1/completions", json=body, headers=headers) as answer:
        async for name, data in events(answer.content):
            reader.take(name, data)
            if len(reader.result.token_ids) >= 50:
                break
    end = await left(graph, before)
    await goes_on(session, reader.result.token_ids, end)
