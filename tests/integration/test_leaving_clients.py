"""A client that goes away, at every moment of a round: the session's next round works, and nothing is left behind."""

from __future__ import annotations

import asyncio
import re

import pytest
from whole_graph import Session, WholeGraph, words

# Long enough for a prefill of about a second and a decode of about as long.
PROMPT, ANSWER = 5000, 120


def phases(graph: WholeGraph) -> set[str]:
    """In which phases rounds have been cancelled so far, as the Coordinators logged."""
    logs = (graph.running.run_dir / "logs").glob("coordinator-*.log")
    ends = [line for log in logs for line in log.read_text().splitlines() if '"cancelled"' in line or '"abandoned"' in line]
    return {m.group(1) for line in ends if (m := re.search(r'"phase": ?"(\w+)"', line))}


@pytest.mark.parametrize("history", [0, 3000])
async def test_the_next_round_works_whenever_the_client_leaves(graph: WholeGraph, history: int) -> None:
    expected = None
    for step in range(10):
        session = Session(graph, words(max(history, 40), 100 + step))
        await session.round()
        before = list(session.tokens)
        leaving = asyncio.create_task(session.try_round(words(PROMPT - history, 7), max_tokens=ANSWER))
        await asyncio.sleep(0.02 + 0.25 * step)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        session.tokens = before
        again = await session.round(words(60, 8), max_tokens=4)
        assert again.completion_tokens == 4
        await session.end()
        expected = again
    assert expected is not None


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
