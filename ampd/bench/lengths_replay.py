"""Replay sessions of known lengths through a graph: many at once, closed-loop within a session, failed rounds sent again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from ampd.bench.client import Client
from ampd.bench.lengths import LengthSession, PromptMaker
from ampd.bench.rounds import RoundRequest, RoundResult


@dataclass(frozen=True, slots=True)
class Pace:
    """How recorded time and lengths become those of the replay.

    Sessions start evenly within `ramp_s`; gaps are cut at `longest_gap_s`, then divided by `speed`; lengths are divided by
    `divisor`, answers by `output_divisor`. A failed round is sent again up to `tries` times in all, after `retry_s`.
    """

    ramp_s: float = 10.0
    speed: float = 1.0
    longest_gap_s: float = 60.0
    divisor: float = 1.0
    output_divisor: float = 1.0
    tries: int = 3
    retry_s: float = 0.5


@dataclass(slots=True)
class Played:
    """One replayed session: the last result of each round, and the errors of those that were sent again."""

    name: str
    results: list[RoundResult] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def decode_workers(self) -> list[int]:
        """The decode workers that its answers name, in order, without repetitions in a row."""
        named = [r.facts.decode_worker for r in self.results if r.facts is not None and r.facts.decode_worker is not None]
        return [w for i, w in enumerate(named) if i == 0 or w != named[i - 1]]


@dataclass(slots=True)
class Crowd:
    """How many sessions are under way, and how many were at most."""

    now: int = 0
    most: int = 0

    def come(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    def go(self) -> None:
        self.now -= 1


async def replay(
    client: Client, sessions: Sequence[LengthSession], count: int, rounds: int, pace: Pace, seed: int, crowd: Crowd,
    answered: Callable[[], None] = lambda: None,
) -> list[Played]:  # fmt: skip
    """Play `count` sessions at once, the i-th with the lengths of `sessions[i % len]` and tokens of its own.

    Each plays `rounds` rounds at most, the last of them final; one whose round fails for good ends there.
    """

    async def play(index: int) -> Played:
        await asyncio.sleep(pace.ramp_s * index / count)
        crowd.come()
        try:
            return await _session(client, sessions[index % len(sessions)], f"replay-{seed}-{index}", rounds, pace, answered)
        finally:
            crowd.go()

    return list(await asyncio.gather(*(play(i) for i in range(count))))


async def _session(
    client: Client, session: LengthSession, name: str, rounds: int, pace: Pace, answered: Callable[[], None]
) -> Played:
    played = Played(name)
    maker = PromptMaker(Random(name), pace.divisor)
    recorded = session.rounds[:rounds]
    for number, round in enumerate(recorded, start=1):
        if number > 1:
            await asyncio.sleep(min(round.gap_s, pace.longest_gap_s) / pace.speed)
        request = RoundRequest(
            session=name,
            number=number,
            prompt=maker.prompt(round),
            max_tokens=max(1, int(round.output / pace.output_divisor)),
            final=number == len(recorded),
            extra={"ignore_eos": True},
        )
        result = await client.send(request)
        for _ in range(pace.tries - 1):
            if result.error is None:
                break
            played.errors.append(result.error)
            await asyncio.sleep(pace.retry_s)
            result = await client.send(request)
        played.results.append(result)
        answered()
        if result.error is not None:
            break
        maker.answered(result.token_ids)
    return played
