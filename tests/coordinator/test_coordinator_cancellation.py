"""A client that goes away, in every phase of a round before its tokens stream."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from driver import Driver, ask, fresh_tokens
from leaving import begun, cut, goes_on, holders, outcomes
from sim_caller import SimCaller
from sim_cluster import SimCluster
from sim_model import make_graph

from ampd.errors import RoundCancelled
from ampd.state.base import StateStore

# Path, role of the worker to hold, phase to hold it at, and whether the session keeps its older history.
STOPPED = [
    ("remote", "prefill", "queued", False),
    ("remote", "prefill", "reading", False),
    ("remote", "prefill", "prefilling", False),
    ("remote", "prefill", "prefilled", False),
    ("remote", "decode", "transferring", False),
    ("remote", "decode", "starting", False),
    ("local", "decode", "queued", True),
    ("local", "decode", "starting", True),
]


@pytest.mark.parametrize(("path", "role", "phase", "keeps"), STOPPED)
async def test_the_session_goes_on_and_nothing_is_left(
    cluster: SimCluster, store: StateStore, path: str, role: str, phase: str, keeps: bool
) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": ["local", path, "remote", "local"]}))
    tokens = await begun(driver)
    await cut(driver, cluster, tokens, role, phase)
    await driver.check_clean("s")
    assert outcomes(driver, "cancelled") == 1
    await goes_on(driver, tokens, 24 if keeps else 0, 2)


@pytest.mark.parametrize(("path", "role", "phase"), [p[:3] for p in STOPPED if p[2] != "reading"])
async def test_a_first_round_cut_short_leaves_no_pin(
    cluster: SimCluster, store: StateStore, path: str, role: str, phase: str
) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": [path]}))
    await cut(driver, cluster, fresh_tokens(24), role, phase)
    await driver.check_clean("s")
    assert cluster.pins() == set()


@pytest.mark.parametrize(("path", "role", "phase"), [("local", "decode", "streaming"), ("remote", "prefill", "queued")])
async def test_a_final_round_cut_short_still_ends_the_session(
    cluster: SimCluster, store: StateStore, path: str, role: str, phase: str
) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": ["local", path]}))
    tokens = fresh_tokens(24)
    await driver.correct(tokens)
    await cut(driver, cluster, tokens + fresh_tokens(9), role, phase, final=True)
    await driver.settle()
    assert cluster.pins() == set()
    assert await store.sessions() == 0


async def test_a_client_gone_before_dispatch_costs_nothing(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store)
    tokens = fresh_tokens(24)
    first = await driver.correct(tokens)
    caller = SimCaller()
    caller.hang_up()
    with pytest.raises(RoundCancelled):
        await driver.round(ask(tokens), caller)
    await driver.check_clean("s")
    assert (await driver.correct(tokens + first.tokens)).ampd["l_hist"] == 24


async def test_cutting_a_round_leaves_other_sessions_alone(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": ["remote"]}))
    tokens = {name: fresh_tokens(24) for name in "abcd"}
    for name in "abcd":
        tokens[name] += (await driver.correct(tokens[name], name)).tokens + fresh_tokens(3)
    callers = {name: SimCaller() for name in "abcd"}
    running = {name: asyncio.create_task(driver.round(ask(tokens[name], name), callers[name])) for name in "abcd"}
    await asyncio.sleep(0)
    callers["a"].hang_up()
    with contextlib.suppress(RoundCancelled):
        await running["a"]
    for name in "bcd":
        assert (await running[name]).ampd["l_hist"] == 24
    await driver.check_clean(*"abcd")


async def test_a_transfer_under_way_keeps_its_source(cluster: SimCluster, store: StateStore) -> None:
    """The client goes away while the decode worker reads: the prefill worker's pin must outlive the read."""
    driver = Driver(cluster, store, make_graph(policy={"force": ["remote"]}, transport={"read_grace_s": 0.5}))
    for worker in holders(cluster, "decode"):
        worker.hold("transferring")
    caller = SimCaller()
    running = asyncio.create_task(driver.round(ask(fresh_tokens(24)), caller))
    await asyncio.wait(
        [asyncio.create_task(w.reached["transferring"].wait()) for w in holders(cluster, "decode")], return_when="FIRST_COMPLETED"
    )
    caller.hang_up()
    with pytest.raises(RoundCancelled):
        await running
    await driver.coordinator.drain(5.0)
    assert len(cluster.pins()) == 1
    for worker in holders(cluster, "decode"):
        worker.let_go("transferring")
    await driver.settle()
    assert cluster.pins() == set()
