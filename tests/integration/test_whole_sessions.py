"""Whole sessions through the frontend: bound, measured, routed, and closed without a trace."""

from __future__ import annotations

import asyncio
import json

import aiohttp
from whole_graph import Session, WholeGraph, words


async def post(graph: WholeGraph, route: str, body: dict[str, object], headers: dict[str, str] | None = None) -> tuple[int, str]:
    async with aiohttp.ClientSession() as http, http.post(f"{graph.url}/v1/{route}", json=body, headers=headers) as answer:
        return answer.status, await answer.text()


async def test_chat_answers_with_right_usage(graph: WholeGraph) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "What is a list?"}], "max_tokens": 5, "ignore_eos": True}
    status, text = await post(graph, "chat/completions", body, {"x-dynamo-session-id": "usage", "x-dynamo-session-final": "true"})
    answer = json.loads(text)
    assert status == 200, text
    assert answer["usage"]["completion_tokens"] == 5
    assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] + 5
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_history_is_what_the_session_has_and_cached_tokens_say_so(graph: WholeGraph) -> None:
    session = Session(graph, words(150, 1))
    first = await session.round()
    held = len(session.tokens) - 1  # the last token was sampled, its KV does not exist
    second = await session.round(words(70, 2))
    assert first.facts is not None
    assert second.facts is not None
    assert (first.facts.l_hist, second.facts.l_hist) == (0, held // 32 * 32)
    assert second.facts.l_hist + second.facts.l_incr == second.prompt_tokens
    assert second.cached_tokens >= second.facts.l_hist
    assert second.facts.recompute is None
    await session.end()


async def test_a_rewritten_context_has_a_shorter_history_and_right_tokens(graph: WholeGraph) -> None:
    session = Session(graph, words(200, 3))
    await session.round()
    session.tokens = [*session.tokens[:100], *words(80, 4)]
    rewritten = await session.round()
    assert rewritten.facts is not None
    assert rewritten.facts.l_hist == 96
    assert rewritten.facts.rewritten
    fresh = Session(graph, session.tokens[: rewritten.prompt_tokens])
    assert (await fresh.round()).token_ids == rewritten.token_ids
    await session.end()
    await fresh.end()


async def test_two_coordinators_agree_on_a_sessions_binding(graph: WholeGraph) -> None:
    """The frontend gives rounds to its Coordinators in turn, so six rounds meet both."""
    session = Session(graph, words(64, 5))
    rounds = [await session.round(words(40, n)) for n in range(6)]
    facts = [r.facts for r in rounds if r.facts is not None]
    assert len({f.decode_worker for f in facts}) == 1
    assert [f.round for f in facts] == [1, 2, 3, 4, 5, 6]
    assert all(f.l_hist > 0 for f in facts[1:])
    assert len(coordinators_that_served(graph, facts[0].session)) == 2
    await session.end()


def coordinators_that_served(graph: WholeGraph, session: str) -> set[str]:
    logs = (graph.running.run_dir / "logs").glob("coordinator-*.log")
    return {log.name for log in logs if session in log.read_text()}


async def test_rounds_without_a_session_are_single(graph: WholeGraph) -> None:
    status, _ = await post(graph, "completions", {"model": "tiny", "prompt": words(50, 6), "max_tokens": 3})
    assert status == 200


async def test_an_idle_session_ends_by_itself(graph: WholeGraph) -> None:
    await Session(graph, words(500, 7)).round()
    assert await graph.store.sessions() == 1
    # `nothing_left` waits for the session's key and pin to go: sessions.idle_ttl_s is 20 here


async def test_many_sessions_at_once_leave_nothing(graph: WholeGraph) -> None:
    async def play(seed: int) -> set[str]:
        session = Session(graph, words(100 + 37 * seed, seed))
        paths = set()
        for n in range(3):
            facts = (await session.round(words(30 + 90 * n, seed + n), final=n == 2)).facts
            assert facts is not None
            paths.add(facts.path)
        return paths

    paths = await asyncio.gather(*(play(seed) for seed in range(8)))
    assert all(paths)
