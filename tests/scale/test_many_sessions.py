"""The shipped graph of 64 simulated workers and two Coordinators under many sessions, while Redis and a Coordinator die."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from ampd.bench.lengths import LengthRound, LengthSession
from ampd.bench.lengths_replay import Pace
from ampd.config import load_graph
from ampd.launch import running_graph
from benchmarks.scale import Mishaps, run

GRAPH = Path(__file__).parents[2] / "configs" / "sim-64.yaml"
# Engines ten times as fast, so that a session takes seconds; and a Redis that may be slow, as machines that run tests are.
SETS = ["workers.0.sim.speed=10", "workers.1.sim.speed=10", "state.deadline_ms=50"]
PACE = Pace(ramp_s=3.0, tries=10)


def sessions(rng: Random, count: int = 40, rounds: int = 4) -> list[LengthSession]:
    """Sessions that grow by a few hundred tokens a round, a second apart."""
    made = []
    for index in range(count):
        prompt, list_of = 0, []
        for number in range(rounds):
            history, prompt = prompt, prompt + rng.randrange(100, 600)
            list_of.append(LengthRound(prompt, history, rng.randrange(2, 20), 1.0 if number else 0.0))
            prompt += 2
        made.append(LengthSession(f"s{index}", tuple(list_of)))
    return made


async def replayed(mishaps: Mishaps, count: int = 120) -> dict[str, Any]:
    async with running_graph(load_graph(GRAPH, SETS)) as running:
        assert {name.rpartition("-")[0] for name in running.pids} >= {"prefill", "decode", "coordinator"}
        return await run(running, sessions(Random(7)), count, 4, PACE, mishaps)


async def test_every_round_is_answered_on_the_sessions_own_worker() -> None:
    row = await replayed(Mishaps())
    assert (row["answered"], row["failed"], row["sent_again"]) == (480, 0, 0)
    assert (row["sessions_that_moved"], row["rebound"]) == (0, {})
    assert row["concurrent_sessions"] > 100
    assert row["prefill_workers_used"] >= 16
    assert row["busiest_prefill_share"] < 0.2
    assert row["queues_empty_at_end"]


async def test_redis_dies_and_comes_back_empty() -> None:
    row = await replayed(Mishaps(redis_outage_s=4.0))
    assert (row["answered"], row["failed"], row["sent_again"]) == (480, 0, 0)
    assert row["degraded"] > 0
    assert row["sessions_that_moved"] == 0
    assert row["queues_empty_at_end"]


async def test_a_coordinator_dies_and_its_sessions_stay_where_they_are() -> None:
    row = await replayed(Mishaps(kill_coordinator=True))
    assert (row["answered"], row["failed"]) == (480, 0)
    assert row["sent_again"] == sum(row["errors"].values()) > 0
    assert all("unavailable" in error or "HTTP 500" in error or "stream ended" in error for error in row["errors"]), row["errors"]
    assert row["sessions_that_moved"] == 0
    assert row["queues_empty_at_end"]
