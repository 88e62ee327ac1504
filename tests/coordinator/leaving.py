"""Clients that go away in the middle of a round."""

from __future__ import annotations

import asyncio

import pytest
from driver import Answer, Driver, ask, fresh_tokens
from sim_caller import SimCaller
from sim_cluster import SimCluster
from sim_worker import SimWorker

from ampd.errors import RoundCancelled


def holders(cluster: SimCluster, role: str) -> list[SimWorker]:
    return [w for w in cluster.workers.values() if w.role == role]


def finishes(cluster: SimCluster) -> int:
    return sum(len(w.finishes) for w in cluster.workers.values())


async def told_to_finish(cluster: SimCluster, heard: int = 0) -> None:
    """Wait until workers have been told more often than that."""
    async with asyncio.timeout(10):
        while finishes(cluster) == heard:
            await asyncio.sleep(0)


async def any_reaches(cluster: SimCluster, role: str, phase: str) -> None:
    """Wait until a held worker of that role has come to a phase."""
    reached = [asyncio.create_task(w.reached[phase].wait()) for w in holders(cluster, role)]
    await asyncio.wait_for(asyncio.wait(reached, return_when=asyncio.FIRST_COMPLETED), 10)
    for waiting in reached:
        waiting.cancel()


async def cut(
    driver: Driver, cluster: SimCluster, tokens: list[int], role: str, phase: str, *, finish: bool = False, **more: object
) -> Answer:
    """Run a round up to a phase, hang up there, and let the worker go on. `finish`: it must be told to finish, not to stop."""
    for worker in holders(cluster, role):
        worker.hold(phase)
    caller, answer, heard = SimCaller(), Answer(), finishes(cluster)
    running = asyncio.create_task(driver.round(ask(tokens, **more), caller, answer))
    await any_reaches(cluster, role, phase)
    caller.hang_up()
    if finish:
        await told_to_finish(cluster, heard)
        if phase != "streaming":  # which the word to finish ends
            for worker in holders(cluster, role):
                worker.let_go(phase)
    with pytest.raises(RoundCancelled):
        await asyncio.wait_for(running, 10)
    assert all(leg.stopped.is_set() != finish for leg in caller.legs[-1:]), "how the worker was told"
    assert (finishes(cluster) > heard) == finish
    for worker in holders(cluster, role):
        if phase in worker.gates:
            worker.let_go(phase)
    return answer


async def begun(driver: Driver) -> list[int]:
    """A first round of session `s`. Returns a prompt of 35 tokens that goes on from it."""
    tokens = fresh_tokens(24)
    return tokens + (await driver.correct(tokens)).tokens + fresh_tokens(8)


async def goes_on(driver: Driver, tokens: list[int], l_hist: int, number: int) -> None:
    """The session's next two rounds are right, and the first has that much history."""
    again = await driver.correct(tokens + fresh_tokens(5))
    assert (again.ampd["l_hist"], again.ampd["recompute"], again.ampd["round"]) == (l_hist, None, number)
    await driver.correct(tokens + fresh_tokens(3))
    await driver.check_clean("s")
    assert len(driver.cluster.pins()) == 1


def outcomes(driver: Driver, outcome: str) -> float | None:
    return driver.coordinator.counters.registry.get_sample_value("ampd_rounds_total", {"outcome": outcome})


async def abandon(driver: Driver, cluster: SimCluster, tokens: list[int], **more: object) -> SimCaller:
    """Close a round's stream after the first token, of which the decode workers then stay."""
    for worker in holders(cluster, "decode"):
        worker.hold("streaming")
    caller = SimCaller()
    stream = driver.coordinator.serve(ask(tokens, **{"max_tokens": 9, **more}), caller)
    await anext(stream)
    await asyncio.wait_for(stream.aclose(), 10)
    return caller


def let_all_go(cluster: SimCluster) -> None:
    """Open every gate."""
    for worker in cluster.workers.values():
        for phase in list(worker.gates):
            worker.let_go(phase)
