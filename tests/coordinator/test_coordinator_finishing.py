"""A client that goes away while its tokens stream, or a stop string: the round ends early and is history all the same."""

from __future__ import annotations

import asyncio

import pytest
from driver import Driver, ask, fresh_tokens
from leaving import abandon, any_reaches, begun, cut, finishes, goes_on, holders, let_all_go, outcomes, told_to_finish
from sim_caller import SimCaller
from sim_cluster import SimCluster
from sim_model import answer_to, make_graph

from ampd.coordinator import watch
from ampd.errors import RoundCancelled, WorkerError
from ampd.state.base import StateStore


@pytest.mark.parametrize("phase", ["streaming", "ending"])
@pytest.mark.parametrize("path", ["local", "remote"])
async def test_a_round_cut_while_it_streams_is_history(cluster: SimCluster, store: StateStore, path: str, phase: str) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": ["local", path, "remote", "local"]}))
    tokens = await begun(driver)
    answer = await cut(driver, cluster, tokens, "decode", phase, finish=True, max_tokens=9)
    assert answer.tokens == answer_to(tokens, 2 if phase == "streaming" else 9)
    assert outcomes(driver, "cancelled") == 1
    assert outcomes(driver, "served") == 1
    await driver.check_clean("s")
    # The last token has no KV, the first ones have: in blocks of 4, and 35 tokens of prompt.
    await goes_on(driver, tokens + answer.tokens, 36 if phase == "streaming" else 40, 3)


@pytest.mark.parametrize("path", ["local", "remote"])
async def test_a_first_round_cut_while_it_streams_begins_a_session(cluster: SimCluster, store: StateStore, path: str) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": [path]}))
    tokens = fresh_tokens(27)
    answer = await cut(driver, cluster, tokens, "decode", "streaming", finish=True, max_tokens=9)
    await driver.check_clean("s")
    await goes_on(driver, tokens + answer.tokens, 28, 2)


@pytest.mark.parametrize("path", ["local", "remote"])
async def test_an_abandoned_answer_is_history(
    cluster: SimCluster, store: StateStore, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The frontend drops the stream itself: no signal comes, the generator is just closed."""
    caplog.set_level("INFO", "ampd.coordinator.round")
    driver = Driver(cluster, store, make_graph(policy={"force": ["local", path, "remote", "local"]}))
    tokens = await begun(driver)
    caller = await abandon(driver, cluster, tokens)
    await driver.check_clean("s")
    assert not caller.legs[-1].stopped.is_set()
    assert finishes(cluster) == 1
    ends = [r.getMessage() for r in caplog.records if '"ampd.round"' in r.getMessage()]
    assert len(ends) == 2
    assert '"outcome":"abandoned","error":null' in ends[1]
    assert '"tokens_out":2,"ttft_s":0.01' in ends[1], "what was measured of it counts"
    assert outcomes(driver, "abandoned") == 1
    let_all_go(cluster)
    await goes_on(driver, tokens + answer_to(tokens, 2), 36, 3)


async def test_a_client_that_hangs_up_and_is_dropped_is_left_once(cluster: SimCluster, store: StateStore) -> None:
    """Dynamo signals that the client is gone, and then also drops the stream."""
    driver = Driver(cluster, store, make_graph(policy={"force": ["local"]}))
    tokens = await begun(driver)
    for worker in holders(cluster, "decode"):
        worker.hold("streaming")
    caller = SimCaller()
    stream = driver.coordinator.serve(ask(tokens, max_tokens=9), caller)
    await anext(stream)
    caller.hang_up()
    await told_to_finish(cluster)
    await asyncio.wait_for(stream.aclose(), 10)
    await driver.check_clean("s")
    assert outcomes(driver, "abandoned") == 1
    assert not outcomes(driver, "cancelled")
    let_all_go(cluster)
    await goes_on(driver, tokens + answer_to(tokens, 2), 36, 3)


@pytest.mark.parametrize("more", [{"final": True}, {"session": None}, {"sampling_options": {"n": 2}}], ids=str)
async def test_a_streaming_round_that_would_keep_nothing_is_stopped(
    cluster: SimCluster, store: StateStore, more: dict[str, object]
) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": ["local"]}))
    tokens = await begun(driver)
    await cut(driver, cluster, tokens, "decode", "streaming", **more)
    caller = await abandon(driver, cluster, tokens, **more)
    assert caller.legs[-1].stopped.is_set()
    let_all_go(cluster)
    await driver.check_clean("s")
    assert finishes(cluster) == 0
    assert await store.sessions() == (0 if "final" in more else 1)


@pytest.mark.parametrize("dropped", [False, True], ids=["hung up", "dropped"])
@pytest.mark.parametrize(("path", "keeps"), [("local", True), ("remote", False)])
async def test_a_worker_that_cannot_be_told_to_finish_is_stopped(
    cluster: SimCluster, store: StateStore, path: str, keeps: bool, dropped: bool
) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": ["local", path, "remote", "local"]}))
    tokens = await begun(driver)
    for worker in holders(cluster, "decode"):
        worker.fail("finish", WorkerError("no answer in time"))
    if dropped:
        caller = await abandon(driver, cluster, tokens)
        await driver.settle()
        assert caller.legs[-1].stopped.is_set()
        let_all_go(cluster)
    else:
        await cut(driver, cluster, tokens, "decode", "streaming", max_tokens=9)
    await driver.check_clean("s")
    await goes_on(driver, tokens, 24 if keeps else 0, 2)


async def leave_ending(driver: Driver, cluster: SimCluster, tokens: list[int]) -> SimCaller:
    """A client hangs up while its round ends on a worker that is held there."""
    caller = SimCaller()
    running = asyncio.create_task(driver.round(ask(tokens), caller))
    await any_reaches(cluster, "decode", "ending")
    caller.hang_up()
    with pytest.raises(RoundCancelled):
        await asyncio.wait_for(running, 10)
    return caller


@pytest.mark.parametrize("dropped", [False, True], ids=["hung up", "dropped"])
async def test_a_worker_that_does_not_finish_in_time_is_stopped(
    cluster: SimCluster, store: StateStore, dropped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FINISH_S", 0.05)
    driver = Driver(cluster, store, make_graph(policy={"force": ["local", "remote", "remote", "local"]}))
    tokens = await begun(driver)
    for worker in holders(cluster, "decode"):
        worker.hold("ending")
    if dropped:
        caller = await abandon(driver, cluster, tokens)
    else:
        caller = await leave_ending(driver, cluster, tokens)
    await driver.settle()
    assert caller.legs[-1].stopped.is_set()
    assert outcomes(driver, "abandoned" if dropped else "cancelled") == 1
    let_all_go(cluster)
    await driver.check_clean("s")
    await goes_on(driver, tokens, 0, 2)


async def test_a_left_round_that_makes_no_progress_is_cancelled_not_failed(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": ["local", "remote"]}, coordinator={"round_timeout_s": 0.3}))
    tokens = await begun(driver)
    for worker in holders(cluster, "decode"):
        worker.hold("ending")
    await leave_ending(driver, cluster, tokens)
    assert outcomes(driver, "cancelled") == 1
    let_all_go(cluster)
    await driver.check_clean("s")


async def test_a_worker_that_dies_while_it_finishes_leaves_the_session_usable(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": ["local"]}))
    tokens = await begun(driver)
    for worker in holders(cluster, "decode"):
        worker.hold("ending")
    await abandon(driver, cluster, tokens)
    await any_reaches(cluster, "decode", "ending")
    bound = next(w for w in holders(cluster, "decode") if w.reached["ending"].is_set())
    bound.kill()
    await driver.settle()
    assert outcomes(driver, "abandoned") == 1
    let_all_go(cluster)
    again = await driver.correct(tokens)
    assert (again.ampd["rebound"], again.ampd["l_hist"]) == ("worker_gone", 0)


async def test_a_drain_waits_for_a_round_that_nobody_reads(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": ["local"]}))
    tokens = await begun(driver)
    for worker in holders(cluster, "decode"):
        worker.hold("ending")
    await abandon(driver, cluster, tokens)
    draining = asyncio.create_task(driver.coordinator.drain(10.0))
    await any_reaches(cluster, "decode", "ending")
    await asyncio.sleep(0.01)
    assert not draining.done()
    let_all_go(cluster)
    await asyncio.wait_for(draining, 10)
    assert await driver.stored_pins("s") == cluster.pins()
    assert len(cluster.pins()) == 1
