"""An answer that Dynamo drops without closing it, as when its client has left: the round ends since nothing holds on to it."""

from __future__ import annotations

import asyncio
import gc

from driver import Driver, ask, fresh_tokens
from leaving import finishes, holders, let_all_go, outcomes
from sim_caller import SimCaller
from sim_cluster import SimCluster
from sim_model import make_graph

from ampd.state.base import StateStore


async def test_a_dropped_answer_ends_its_round(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": ["local"]}))
    for worker in holders(cluster, "decode"):
        worker.hold("streaming")
    stream = driver.coordinator.serve(ask(fresh_tokens(27), max_tokens=9), SimCaller())
    # Dynamo pulls each piece in a task of its own.
    await asyncio.create_task(anext(stream))  # type: ignore[arg-type]
    collecting = gc.isenabled()
    gc.disable()  # it must go by its last reference
    try:
        del stream
        async with asyncio.timeout(10):
            while not finishes(cluster):
                await asyncio.sleep(0.01)
    finally:
        if collecting:
            gc.enable()
    let_all_go(cluster)
    await driver.check_clean("s")
    assert outcomes(driver, "abandoned") == 1
