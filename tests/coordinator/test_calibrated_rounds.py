"""A worker's factors on their way from its heartbeat through the store into decisions, and gone with its epoch."""

from __future__ import annotations

from typing import Any

import pytest
from driver import Driver, fresh_tokens
from sim_cluster import SimCluster
from sim_model import make_graph

from ampd.config import build_graph
from ampd.cost_model import CoarseCostModel
from ampd.state.base import StateStore

FACTORS = {"t_pre_factor": 3.0, "t_dec_factor": 1.5, "t_mixed_factor": 2.0, "t_kv_factor": 0.5}
NO_NEAR = {"name": "predictive", "predictive": {"near": 0.0, "deflect": False}}


async def remote(driver: Driver, session: str, tokens: int = 200) -> dict[str, Any]:
    """What is said of a session's first round."""
    return (await driver.correct(fresh_tokens(tokens), session)).ampd


async def test_rounds_leave_a_worker_that_says_it_is_slow(store: StateStore, cluster: SimCluster) -> None:
    driver = Driver(cluster, store, make_graph(policy={**NO_NEAR, "force": ["remote"]}))
    even = [(await remote(driver, f"a{i}"))["prefill_worker"] for i in range(12)]
    assert set(even) == {11, 12}
    await cluster.report(cluster.workers[11], **FACTORS)
    assert {(await remote(driver, f"b{i}"))["prefill_worker"] for i in range(12)} == {12}
    await driver.settle()


async def test_the_estimates_and_the_queue_have_the_factor(store: StateStore, cluster: SimCluster) -> None:
    driver = Driver(cluster, store, make_graph(policy={**NO_NEAR, "force": ["local"]}))
    for id in (21, 22):
        await cluster.report(cluster.workers[id], **FACTORS)
    figures = await remote(driver, "s")
    assert figures["estimates"]["local"] == pytest.approx(3 * CoarseCostModel().t_pre(0, 200, 1), rel=1e-6)
    await driver.settle()


async def test_the_view_has_the_factors_until_a_new_epoch(store: StateStore, cluster: SimCluster) -> None:
    await cluster.report(cluster.workers[11], **FACTORS)

    async def seen() -> list[float]:
        worker = (await store.view()).find(11)
        assert worker is not None
        return [getattr(worker, name) for name in FACTORS]

    assert await seen() == list(FACTORS.values())
    await cluster.add(11, "prefill")
    assert await seen() == [1.0, 1.0, 1.0, 1.0]


def test_one_key_switches_it() -> None:
    workers = [{"name": "d", "role": "decode"}]
    assert build_graph({"workers": workers}).policy.calibrate
    assert not build_graph({"workers": workers, "policy": {"calibrate": False}}).policy.calibrate
