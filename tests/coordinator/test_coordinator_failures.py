"""Workers that die, fail or hang, in every phase of a round."""

from __future__ import annotations

import asyncio

import pytest
from driver import Answer, Driver, ask, fresh_tokens
from sim_cluster import SimCluster
from sim_model import answer_to, make_graph

from ampd.errors import NoWorkers, RequestError, WorkerError, WorkerGone
from ampd.state.base import StateStore

GONE, BROKEN = WorkerGone("stream broke"), WorkerError("Internal: out of cheese")


@pytest.mark.parametrize("error", [GONE, BROKEN], ids=["gone", "broken"])
@pytest.mark.parametrize("phase", ["queued", "reading", "prefilling", "prefilled"])
async def test_a_failed_prefill_goes_on_locally(cluster: SimCluster, store: StateStore, phase: str, error: Exception) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": ["local", "remote"]}))
    tokens = fresh_tokens(24)
    first = await driver.correct(tokens)
    for id in (11, 12):
        cluster.workers[id].fail(phase, error)
    figures = (await driver.correct(tokens + first.tokens + fresh_tokens(7))).ampd
    assert (figures["path"], figures["reason"]) == ("local", "prefill_failed")
    assert str(error) in figures["prefill_failed"]
    assert figures["decode_worker"] == first.ampd["decode_worker"]
    await driver.check_clean("s")


async def test_a_dead_prefill_worker_is_left_alone_for_a_while(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": ["remote"]}))
    for id in (11, 12):
        cluster.workers[id].kill()
    reasons = [(await driver.correct(fresh_tokens(9), str(n))).ampd["reason"] for n in range(4)]
    assert reasons == ["prefill_failed", "prefill_failed", "only_local", "only_local"]


@pytest.mark.parametrize("path", ["local", "remote"])
async def test_a_decode_worker_dead_before_the_first_token_is_replaced(cluster: SimCluster, store: StateStore, path: str) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": [path]}))
    tokens = fresh_tokens(24)
    first = await driver.correct(tokens)
    cluster.workers[first.ampd["decode_worker"]].kill()
    longer = tokens + first.tokens + fresh_tokens(7)
    second = await driver.correct(longer)
    assert second.ampd["rebound"] == "worker_gone"
    assert {first.ampd["decode_worker"], second.ampd["decode_worker"]} == {21, 22}
    third = await driver.correct(longer + second.tokens + fresh_tokens(2))
    assert (third.ampd["decode_worker"], third.ampd["rebound"], third.ampd["l_hist"]) == (second.ampd["decode_worker"], None, 36)
    await driver.check_clean("s")


@pytest.mark.parametrize(
    ("path", "phase"), [("local", "queued"), ("local", "starting"), ("remote", "transferring"), ("remote", "starting")]
)
async def test_a_stream_that_breaks_before_the_first_token_is_replayed(
    cluster: SimCluster, store: StateStore, path: str, phase: str
) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": [path]}))
    tokens = fresh_tokens(24)
    first = await driver.correct(tokens)
    cluster.workers[first.ampd["decode_worker"]].fail(phase, GONE)
    second = await driver.correct(tokens + first.tokens + fresh_tokens(7))
    assert second.ampd["decode_worker"] != first.ampd["decode_worker"]
    await driver.settle()
    assert await driver.queued() == 0
    live = {h for h in cluster.pins() if not h.startswith(str(first.ampd["decode_worker"]))}
    assert live == await driver.stored_pins("s")


@pytest.mark.parametrize("path", ["local", "remote"])
async def test_after_the_first_token_a_dead_worker_is_an_error(cluster: SimCluster, store: StateStore, path: str) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": [path]}))
    for id in (21, 22):
        cluster.workers[id].fail("streaming", GONE)
    tokens, answer = fresh_tokens(24), Answer()
    with pytest.raises(WorkerGone):
        await driver.round(ask(tokens), into=answer)
    assert answer.tokens == answer_to(tokens, 1), "nothing is sent twice"
    await driver.check_clean("s")
    await driver.correct(tokens, "s")


async def test_an_engine_error_is_not_tried_elsewhere(cluster: SimCluster, store: StateStore) -> None:
    """A request that breaks engines must not walk through all of them."""
    driver = Driver(cluster, store, make_graph(policy={"force": ["local"]}))
    for id in (21, 22):
        cluster.workers[id].fail("starting", BROKEN)
    with pytest.raises(WorkerError, match="out of cheese"):
        await driver.round(ask(fresh_tokens(24)))
    assert sum(len(w.decodes) for w in cluster.workers.values()) == 1
    await driver.check_clean("s")


async def test_two_decode_workers_dead_in_one_round_is_an_error(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": ["local"]}))
    for id in (21, 22):
        cluster.workers[id].kill()
    with pytest.raises(WorkerGone):
        await driver.round(ask(fresh_tokens(24)))
    with pytest.raises(NoWorkers):
        await driver.round(ask(fresh_tokens(24)))
    await driver.check_clean("s")


async def test_a_restarted_decode_worker_is_another_one(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": ["remote"]}))
    tokens = fresh_tokens(24)
    first = await driver.correct(tokens)
    old = first.ampd["decode_worker"]
    await cluster.add(old, "decode", kv_free=1)
    second = await driver.correct(tokens + first.tokens + fresh_tokens(7))
    assert (second.ampd["rebound"], second.ampd["l_hist"]) == ("worker_gone", 0)
    assert second.ampd["decode_worker"] != old
    await driver.check_clean("s")


async def test_sessions_leave_a_draining_worker_and_give_up_its_pin(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store)
    tokens = fresh_tokens(24)
    first = await driver.correct(tokens)
    await cluster.report(cluster.workers[first.ampd["decode_worker"]], draining=True)
    second = await driver.correct(tokens + first.tokens + fresh_tokens(7))
    assert second.ampd["rebound"] == "draining"
    await driver.check_clean("s")


@pytest.mark.parametrize(
    ("role", "phase", "path"),
    [("prefill", "prefilling", "remote"), ("decode", "starting", "local"), ("decode", "streaming", "remote")],
)
async def test_a_worker_without_progress_is_given_up(
    cluster: SimCluster, store: StateStore, role: str, phase: str, path: str
) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": [path]}, coordinator={"round_timeout_s": 0.2}))
    for worker in cluster.workers.values():
        if worker.role == role:
            worker.hold(phase)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(driver.round(ask(fresh_tokens(24))), 10)
    await driver.check_clean("s")


async def test_what_went_wrong_is_counted(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store, make_graph(policy={"force": ["local", "remote"]}))
    sample = driver.coordinator.counters.registry.get_sample_value
    tokens = fresh_tokens(24)
    first = await driver.correct(tokens)
    bound = cluster.workers[first.ampd["decode_worker"]]
    for pin in list(bound.pins._pins.values()):
        bound.drop(pin.handle)
    second = await driver.correct(tokens + first.tokens)
    assert second.ampd["recompute"] == "unknown"
    bound.kill()
    await driver.correct([tokens[0] + 1, *tokens[1:]])
    with pytest.raises(RequestError):
        await driver.round(ask(tokens, refuse=True))
    assert sample("ampd_route_decisions_total", {"path": "local", "reason": "forced", "round": "initial"}) == 1
    assert sample("ampd_route_decisions_total", {"path": "remote", "reason": "forced", "round": "incremental"}) == 2
    assert sample("ampd_rounds_total", {"outcome": "served"}) == 3
    assert sample("ampd_rounds_total", {"outcome": "refused"}) == 1
    assert sample("ampd_kv_recomputes_total", {"cause": "unknown"}) == 1
    assert sample("ampd_session_rebinds_total", {"cause": "worker_gone"}) == 1
    assert sample("ampd_prefix_drift_total") == 2
    assert sample("ampd_ttft_seconds_count", {"round": "initial", "path": "local"}) == 1


async def test_a_handle_to_other_tokens_is_not_stored(
    cluster: SimCluster, store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(cluster, store)
    for id in (21, 22):
        worker = cluster.workers[id]
        issue = worker.issue
        monkeypatch.setattr(worker, "issue", lambda round, session, tokens, issue=issue: issue(round, session, [9, *tokens[1:]]))
    tokens = fresh_tokens(24)
    await driver.correct(tokens)
    await driver.check_clean("s")
    assert cluster.pins() == set()
    assert (await driver.correct(tokens + fresh_tokens(5))).ampd["l_hist"] == 0
