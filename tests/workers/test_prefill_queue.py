"""The queue in front of the engine: slots, Algorithm 2 at each dequeue, cancellation at every moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from ampd.errors import RoundCancelled
from ampd.policy.reordering import Reordering, reorder
from ampd.policy.types import PrefillTask
from ampd.workers.prefill_queue import PrefillQueue


class Departures:
    def __init__(self) -> None:
        self.log: list[tuple[str, tuple[str, ...]]] = []

    def departed(self, task: str, postponed: Sequence[str]) -> None:
        self.log.append((task, tuple(postponed)))


def order(tasks: Sequence[PrefillTask], now: float) -> Reordering:
    return reorder(tasks, now, 3)


def task(id: str, cost_s: float = 1.0, target_s: float = 100.0) -> PrefillTask:
    return PrefillTask(id, time.monotonic(), cost_s, target_s)


class Runner:
    """Runs tasks through a queue; each stays in its slot until told to leave."""

    def __init__(self, slots: int, room: int = 0) -> None:
        self.departures = Departures()
        self.queue = PrefillQueue(slots, order, self.departures, time.monotonic, room)
        self.started: list[str] = []
        self.leave: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def add(self, t: PrefillTask, tokens: int = 0) -> None:
        self.leave[t.id] = asyncio.Event()

        async def run() -> None:
            await self.queue.take(t, tokens)
            self.started.append(t.id)
            await self.leave[t.id].wait()
            self.queue.leave(t.id)

        self.tasks[t.id] = asyncio.create_task(run())
        await self.settle()

    async def end(self, id: str) -> None:
        self.leave[id].set()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)


async def test_slots_bound_what_is_in_the_engine() -> None:
    r = Runner(2)
    for id in "abc":
        await r.add(task(id))
    assert r.started == ["a", "b"]
    await r.end("a")
    assert r.started == ["a", "b", "c"]


async def test_the_short_task_goes_first_when_that_saves_its_target() -> None:
    r = Runner(1)
    await r.add(task("running"))
    await r.add(task("long", cost_s=5.0, target_s=20.0))
    await r.add(task("short", cost_s=0.1, target_s=1.0))
    await r.end("running")
    assert r.started == ["running", "short"]
    assert r.departures.log[-1] == ("short", ("long",))
    assert [t.postponed for t in r.queue.waiting] == [1]


async def test_no_task_is_postponed_more_often_than_the_window() -> None:
    r = Runner(1)
    await r.add(task("running"))
    await r.add(task("long", cost_s=5.0, target_s=1000.0))
    overtaken = 0
    last = "running"
    for i in range(6):
        await r.add(task(f"s{i}", cost_s=0.1, target_s=1.0))
        await r.end(last)
        last = r.started[-1]
        if last == "long":
            break
        overtaken += 1
    assert last == "long"
    assert overtaken == 3


async def test_cancelling_a_waiting_task_removes_it() -> None:
    r = Runner(1)
    await r.add(task("a"))
    await r.add(task("b"))
    assert r.queue.cancel("b")
    await r.settle()
    with pytest.raises(RoundCancelled):
        await r.tasks["b"]
    assert r.queue.waiting == []
    assert r.departures.log == [("a", ()), ("b", ())]
    assert not r.queue.cancel("a"), "a task in the engine is not the queue's to cancel"
    await r.end("a")
    await r.add(task("c"))
    assert r.started == ["a", "c"]


@pytest.mark.parametrize("leave_first", [False, True])
async def test_an_asyncio_cancellation_never_loses_a_slot(leave_first: bool) -> None:
    r = Runner(1)
    await r.add(task("a"))
    await r.add(task("b"))
    if leave_first:  # b's turn comes in the tick in which it is cancelled
        r.leave["a"].set()
        await asyncio.sleep(0)
    r.tasks["b"].cancel()
    await r.end("a")
    await r.add(task("c"))
    assert r.started[-1] == "c"


async def test_running_seconds_count_down_and_never_below_zero() -> None:
    r = Runner(2)
    assert r.queue.running_s() == 0.0
    await r.add(task("a", cost_s=5.0))
    await r.add(task("b", cost_s=0.0))
    assert 4.0 < r.queue.running_s() <= 5.0
    await r.end("a")
    assert r.queue.running_s() == 0.0


async def test_a_round_that_starts_over_keeps_its_place() -> None:
    """It arrived at the Coordinator before those that have come here first."""
    runner = Runner(slots=1)
    now = time.monotonic()
    await runner.add(task("running"))
    for n in range(4):
        await runner.add(PrefillTask(f"fresh-{n}", now - 1 + n / 10, 1.0, 100.0))
    await runner.add(PrefillTask("again", now - 9, 1.0, 100.0))
    assert [t.id for t in runner.queue.waiting] == ["again", "fresh-0", "fresh-1", "fresh-2", "fresh-3"]
    await runner.end("running")
    assert runner.started == ["running", "again"]
    for id in ("again", "fresh-0", "fresh-1", "fresh-2", "fresh-3"):
        await runner.end(id)
    assert runner.started[1:] == ["again", "fresh-0", "fresh-1", "fresh-2", "fresh-3"]


async def test_short_ones_share_the_engine_up_to_its_room() -> None:
    runner = Runner(slots=1, room=512)
    for id, tokens in (("long", 600), ("a", 200), ("b", 200), ("c", 200), ("d", 200)):
        await runner.add(task(id), tokens)
    assert runner.started == ["long"], "it is more than a step by itself"
    await runner.end("long")
    assert runner.started == ["long", "a", "b", "c"], "below 512 a further one may come, which then fills it"
    await runner.end("b")
    assert runner.started[-1] == "d"
    for id in ("a", "c", "d"):
        await runner.end(id)
