"""A client that goes away, in every phase of a round."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from driver import Answer, Driver, ask, fresh_tokens
from sim_caller import SimCaller
from sim_cluster import SimCluster
from sim_model import make_graph
from sim_worker import SimWorker

from ampd.errors import RoundCancelled
from ampd.state.base import StateStore

# Path, role of the worker to hold, phase to hold it at, and whether the session keeps its history. A local round cut at its very
# end has just released its history, which the Coordinator cannot know: the next round finds that out and recomputes.
PHASES = [
    ("remote", "prefill", "queued", False),
    ("remote", "prefill", "reading", False),
    ("remote", "prefill", "prefilling", False),
    ("remote", "prefill", "prefilled", False),
    ("remote", "decode", "transferring", False),
    ("remote", "decode", "starting", False),
    ("remote", "decode", "streaming", False),
    ("remote", "decode", "ending", False),
    ("local", "decode", "queued", True),
    ("local", "decode", "starting", True),
    ("local", "decode", "streaming", True),
    ("local", "decode", "ending", True),
]


def holders(cluster: SimCluster, role: str) -> list[SimWorker]:
    return [w for w in cluster.workers.values() if w.role == role]


async def cut(driver: Driver, cluster: SimCluster, tokens: list[int], role: str, phase: str, **more: object) -> None:
    """Run a round up to a phase, hang up there, and let the worker go on."""
    reached = [asyncio.create_task(w.hold(phase).wait()) for w in holders(cluster, role)]
    caller = SimCaller()
    running = asyncio.create_task(driver.round(ask(tokens, **more), caller))
    await asyncio.wait_for(asyncio.wait(reached, return_when=asyncio.FIRST_COMPLETED), 10)
    caller.hang_up()
    with pytest.raises(RoundCancelled):
        await asyncio.wait_for(running, 10)
    assert all(leg.stopped.is_set() for leg in caller.legs[-1:]), "the worker was told"
    for waiting in reached:
        waiting.cancel()
    for worker in holders(cluster, role):
        worker.let_go(phase)


@pytest.mark.parametrize(("path", "role", "phase", "keeps"), PHASES)
async def test_the_session_goes_on_and_nothing_is_left(
    cluster: SimCluster, store: StateStore, path: str, role: str, phase: str, keeps: bool
) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": ["local", path, "remote", "local"]}))
    tokens = fresh_tokens(24)
    first = await driver.correct(tokens)
    longer = tokens + first.tokens + fresh_tokens(7)
    await cut(driver, cluster, longer, role, phase)
    lost = (path, phase) == ("local", "ending")
    await driver.check_clean("s", lost=lost)
    again = await driver.correct(longer)
    assert again.ampd["l_hist"] == (24 if keeps else 0)
    assert again.ampd["recompute"] == ("unknown" if lost else None)
    await driver.correct(longer + again.tokens + fresh_tokens(3))
    await driver.check_clean("s")
    assert len(cluster.pins()) == 1


@pytest.mark.parametrize(("path", "role", "phase"), [p[:3] for p in PHASES if p[2] != "reading"])
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


@pytest.mark.parametrize("path", ["local", "remote"])
async def test_an_abandoned_answer_stops_its_round(cluster: SimCluster, store: StateStore, path: str) -> None:
    """The frontend drops the stream itself: no signal comes, the generator is just closed."""
    driver = Driver(cluster, store, make_graph(policy={"force": ["local", path]}))
    tokens = fresh_tokens(24)
    await driver.correct(tokens)
    for worker in holders(cluster, "decode"):
        worker.hold("streaming")
    caller, answer = SimCaller(), Answer()
    stream = driver.coordinator.serve(ask(tokens + fresh_tokens(9)), caller)
    answer.outputs.append(await anext(stream))
    await stream.aclose()
    assert caller.legs[-1].stopped.is_set()
    await driver.check_clean("s")


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
