"""The load of `benchmarks.fidelity`: sessions of generated lengths, played open-loop through a live graph, and what rounds met."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from random import Random

import msgspec

from ampd.bench.client import Client
from ampd.bench.lengths import LengthRound, PromptMaker
from ampd.bench.rounds import RoundFacts, RoundRequest, RoundResult
from ampd.errors import WorkerError
from ampd.simulator.types import TraceRound, TraceSession


class Observed(msgspec.Struct, frozen=True):
    """One round as it went. `session` is an index, times in seconds since the load began."""

    session: int
    number: int
    arrived_s: float
    ttft_s: float
    itl_s: float
    path: str
    reason: str
    prompt: int
    l_hist: int
    output: int
    queue_s: float
    read_s: float


def draw_sessions(count: int, rate: float, seed: int) -> list[TraceSession]:
    """Sessions for a small CPU model: 3 to 6 rounds, about 600 tokens at first, then 300 new ones a round, 32 in an answer, tools
    of about a second; they arrive as a Poisson process.
    """
    rng = Random(seed)
    sessions, at = [], 0.0
    for i in range(count):
        rounds, held = [], 0
        for number in range(rng.randint(3, 6)):
            new = max(16, round(rng.lognormvariate(0, 0.5) * (300 if number else 600)))
            output = max(4, round(rng.lognormvariate(0, 0.4) * 32))
            rounds.append(TraceRound(held + new, held, output, round(rng.expovariate(1.0), 3) if number else 0.0))
            held += new + output
        at += rng.expovariate(rate)
        sessions.append(TraceSession(f"fidelity-{seed}-{i}", tuple(rounds), at))
    return sessions


async def play(client: Client, sessions: Sequence[TraceSession]) -> list[Observed]:
    """Play all sessions at their times. Raises WorkerError when a round fails: half a run is no recording."""
    began = time.monotonic() + 0.5
    played = await asyncio.gather(*(_play(client, index, session, began) for index, session in enumerate(sessions)))
    return sorted((r for rounds in played for r in rounds), key=lambda r: r.arrived_s)


async def _play(client: Client, index: int, session: TraceSession, began: float) -> list[Observed]:
    maker = PromptMaker(Random(session.name))
    await asyncio.sleep(max(0.0, began + session.arrives_s - time.monotonic()))
    seen = []
    for number, round in enumerate(session.rounds, start=1):
        await asyncio.sleep(round.gap_s)
        request = RoundRequest(
            session=session.name,
            number=number,
            prompt=maker.prompt(LengthRound(round.prompt, round.history, round.output)),
            max_tokens=round.output,
            final=number == len(session.rounds),
            extra={"ignore_eos": True},
        )
        arrived = time.monotonic() - began
        result = await client.send(request)
        seen.append(_observed(index, arrived, _facts(result), result))
        maker.answered(result.token_ids)
    return seen


def _facts(result: RoundResult) -> RoundFacts:
    if result.error is not None or result.facts is None:
        raise WorkerError(f"round {result.number} of {result.session} failed: {result.error or 'no engine data'}")
    return result.facts


def _observed(index: int, arrived_s: float, facts: RoundFacts, result: RoundResult) -> Observed:
    return Observed(
        session=index,
        number=result.number,
        arrived_s=arrived_s,
        ttft_s=facts.ttft_s or 0.0,
        itl_s=facts.itl_s or 0.0,
        path=facts.path,
        reason=facts.reason,
        prompt=facts.prompt_tokens,
        l_hist=facts.l_hist,
        output=result.completion_tokens,
        queue_s=facts.queue_s,
        read_s=facts.read_s,
    )
