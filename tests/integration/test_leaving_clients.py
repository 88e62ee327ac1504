"""A client that goes away, at every moment of a round: the session's next round works, and nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest
from whole_graph import Session, WholeGraph, words

from ampd.bench.rounds import RoundResult

# Long enough for moments of the prefill, and of the decode, to be told apart.
PROMPT, ANSWER = 3000, 150
MOMENTS = [0.1, 0.4, 0.8, 1.1, 1.4, 1.7]  # up to 1 within the TTFT, from 1 to 2 within the decode


async def begun(graph: WholeGraph, history: int, seed: int) -> tuple[Session, str]:
    """A session that has `history` tokens, and what the Coordinators call it."""
    session = Session(graph, words(max(history, 40), seed))
    first = await session.round()
    assert first.facts is not None
    assert first.facts.session is not None
    return session, first.facts.session


def delay(moment: float, plain: RoundResult) -> float:
    """When to leave a round that takes as long as `plain`, seconds after it was sent."""
    assert plain.ttft_s is not None
    return moment * plain.ttft_s if moment < 1 else plain.ttft_s + (moment - 1) * (plain.total_s - plain.ttft_s)


async def leave(session: Session, more: list[int], after_s: float) -> None:
    """Send a round, and close its connection after a time."""
    before = list(session.tokens)
    leaving = asyncio.create_task(session.try_round(more, max_tokens=ANSWER))
    await asyncio.sleep(after_s)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    session.tokens = before


@pytest.mark.parametrize("history", [0, 1500])
async def test_the_next_round_works_whenever_the_client_leaves(graph: WholeGraph, history: int) -> None:
    more = words(PROMPT - history, 7)
    measured, _ = await begun(graph, history, 100 + history)
    plain = await measured.round(more, ANSWER, final=True)
    left: dict[str, float] = {}
    for step, moment in enumerate(MOMENTS, start=1):
        session, name = await begun(graph, history, 100 + history + step)
        left[name] = moment
        await leave(session, more, delay(moment, plain))
        again = await session.round(words(60, 8), final=True)
        fresh = await Session(graph, session.tokens[: again.prompt_tokens]).round(final=True)
        assert len(again.token_ids) == 8
        assert again.token_ids == fresh.token_ids, f"after a client that left at {moment}"
    await graph.settled()
    ends = [end for end in graph.ends() if end["session"] in left and end["outcome"] in ("cancelled", "abandoned")]
    met = {left[end["session"]]: end["phase"] for end in ends}
    assert {"prefilling", "streaming"} <= set(met.values()), f"phases by the moment of leaving: {met}"


async def test_waiting_rounds_that_are_cancelled_leave_their_queue(graph: WholeGraph) -> None:
    running = [Session(graph, words(4000, 200 + n)) for n in range(6)]
    leaving = [asyncio.create_task(s.try_round(max_tokens=2)) for s in running]
    await asyncio.sleep(0.3)
    view = await graph.store.view()
    assert sum(w.queued_tasks for w in (*view.prefill, *view.decode)) > 0, "the load was meant to queue"
    for task in leaving:
        task.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    for session in running:
        session.tokens = session.tokens[:100]
        await session.end()
