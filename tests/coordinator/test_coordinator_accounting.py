"""Whatever happens to rounds, in whatever order, every handle ends once and no wrong KV is ever used."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random

import pytest
from driver import Answer, Driver, ask, fresh_tokens
from sim_caller import SimCaller
from sim_cluster import SimCluster
from sim_model import answer_to, make_graph

from ampd.errors import NoWorkers, RoundCancelled, WorkerError, WorkerGone
from ampd.state.base import StateStore

SESSIONS = ["a", "b", "c", "d"]
PHASES = ["queued", "reading", "prefilling", "prefilled", "transferring", "starting", "streaming", "ending"]


class Agent:
    """One session whose client sends, rewrites, hangs up, drops answers and starts anew at random."""

    def __init__(self, driver: Driver, name: str, seed: int) -> None:
        self.driver, self.name, self.rng = driver, name, Random(f"{name}{seed}")
        self.tokens = fresh_tokens(12)

    async def act(self) -> None:
        rng = self.rng
        if rng.random() < 0.15:
            self.tokens = self.tokens[: rng.randrange(1, len(self.tokens))] + fresh_tokens(3)
        raw = ask(self.tokens, self.name, max_tokens=rng.randrange(1, 6), final=rng.random() < 0.1)
        if rng.random() < 0.1:
            raw["sampling_options"] = {"n": 2}
        caller, answer = SimCaller(), Answer()
        if rng.random() < 0.3:
            asyncio.get_running_loop().call_later(rng.random() * 0.01, caller.hang_up)
        read = rng.randrange(1, 4) if rng.random() < 0.4 else 1000
        with contextlib.suppress(RoundCancelled, WorkerError, NoWorkers):
            async with contextlib.aclosing(self.driver.coordinator.serve(raw, caller)) as outputs:
                async for output in outputs:
                    answer.outputs.append(output)
                    if len(answer.outputs) == read:
                        break
        right = answer_to(self.tokens, raw["stop_conditions"]["max_tokens"])
        assert answer.tokens == right[: len(answer.tokens)], "an answer came from the wrong KV"
        self.tokens = (self.tokens + answer.tokens + fresh_tokens(rng.randrange(1, 9)))[:3_000]


async def disturb(cluster: SimCluster, rng: Random, times: int) -> None:
    """Hold workers at phases for a moment, and break calls."""
    for _ in range(times):
        worker = rng.choice(list(cluster.workers.values()))
        phase = rng.choice(PHASES)
        if rng.random() < 0.4:
            worker.fail(phase, rng.choice([WorkerGone("broke"), WorkerError("failed")]))
        elif phase not in worker.gates:
            worker.hold(phase)
            await asyncio.sleep(rng.random() * 0.01)
            worker.let_go(phase)
        await asyncio.sleep(rng.random() * 0.004)
    for worker in cluster.workers.values():
        worker.failures.clear()


async def storm(cluster: SimCluster, store: StateStore, seed: int) -> Driver:
    """Two Coordinators, two clients on each of four sessions, and trouble. Returns a driver once all is quiet again."""
    drivers = [Driver(cluster, store, make_graph(), seed=seed + n) for n in range(2)]
    for driver in drivers:
        driver.coordinator._quarantine._seconds = 0.005
    agents = [Agent(drivers[n % 2], name, seed) for n, name in enumerate(SESSIONS * 2)]

    async def live(agent: Agent) -> None:
        for _ in range(15):
            await agent.act()

    await asyncio.gather(*(live(agent) for agent in agents), disturb(cluster, Random(seed), 100))
    for driver in drivers:
        await driver.settle()
    assert cluster.issued > 40
    assert sum(len(w.finishes) for w in cluster.workers.values()) > 2
    assert await drivers[0].queued() == 0
    assert max((n for w in cluster.workers.values() for n in w.ended.values()), default=0) <= 1, "no pin ends twice"
    return drivers[0]


async def end_all(driver: Driver) -> None:
    for name in SESSIONS:
        await driver.correct(fresh_tokens(9), name, final=True)
    await driver.settle()
    assert await driver.store.sessions() == 0


@pytest.mark.parametrize("seed", range(6))
async def test_every_handle_ends_exactly_once(cluster: SimCluster, store: StateStore, seed: int) -> None:
    driver = await storm(cluster, store, seed)
    assert cluster.pins() <= await driver.stored_pins(*SESSIONS)
    await end_all(driver)
    assert cluster.pins() == set()
