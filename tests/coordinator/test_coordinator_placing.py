"""Where rounds go: what prefill workers still hold, deflected prefills, moves to a cheaper decode worker, sessions found again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from driver import Driver, ask, fresh_tokens
from redis_server import RedisServer
from sim_cluster import SimCluster
from sim_model import make_graph

from ampd.coordinator.binder import Binder, Binding
from ampd.coordinator.held import after_prefill, still_held
from ampd.coordinator.keys import SessionKey
from ampd.coordinator.request import read_request
from ampd.cost_model import CoarseCostModel
from ampd.errors import RequestError
from ampd.messages import Handle, PrefillResult
from ampd.policy.types import ClusterView, WorkerView
from ampd.policy.types import Round as Placement
from ampd.state.base import Held, StateStore
from ampd.state.redis_store import RedisStore
from ampd.state.resilient import ResilientStore
from ampd.state.settings import StoreSettings


@pytest.fixture
async def pair(store: StateStore) -> SimCluster:
    """One prefill worker and one decode worker."""
    cluster = SimCluster(store)
    await cluster.add(11, "prefill")
    await cluster.add(21, "decode")
    return cluster


async def remote_round(driver: Driver, tokens: list[int]) -> tuple[int, list[int]]:
    """What the prefill worker was believed to hold, and the tokens of the next prompt."""
    answer = await driver.correct(tokens)
    return answer.ampd["held"], tokens + answer.tokens + fresh_tokens(6)


async def test_a_prefill_worker_holds_what_its_last_prefill_left_until_it_forgets(store: StateStore, pair: SimCluster) -> None:
    driver = Driver(pair, store, make_graph(policy={"force": ["remote"]}))
    worker = pair.workers[11]
    worker.kv_written = 500
    prompt = fresh_tokens(24)
    held, following = await remote_round(driver, prompt)
    assert held == 0
    held, following = await remote_round(driver, following)
    assert held == len(prompt), "its first prompt, all of it in whole blocks"
    length = len(following) - 6 - 3 - 6
    await pair.report(worker, kv_written=500 + 100_000 - 4)
    held, following = await remote_round(driver, following)
    assert held == 4 < length, "the tail goes first"
    await pair.report(worker, kv_written=500 + 100_000)
    assert (await remote_round(driver, following))[0] == 0, "a whole pool has been written since"
    await driver.check_clean("s")


async def test_a_restarted_prefill_worker_holds_nothing(store: StateStore, pair: SimCluster) -> None:
    driver = Driver(pair, store, make_graph(policy={"force": ["remote"]}))
    _, following = await remote_round(driver, fresh_tokens(24))
    await pair.add(11, "prefill")
    assert (await remote_round(driver, following))[0] == 0


async def test_a_local_round_does_not_forget_what_is_held(store: StateStore, pair: SimCluster) -> None:
    driver = Driver(pair, store, make_graph(policy={"force": ["remote", "local"]}))
    _, following = await remote_round(driver, fresh_tokens(24))
    _, following = await remote_round(driver, following)
    assert (await remote_round(driver, following))[0] == 24


async def test_a_rewritten_context_is_held_as_far_as_it_matches(store: StateStore, pair: SimCluster) -> None:
    driver = Driver(pair, store, make_graph(policy={"force": ["remote"]}))
    prompt = fresh_tokens(24)
    await remote_round(driver, prompt)
    held, _ = await remote_round(driver, prompt[:12] + fresh_tokens(12))
    assert held == 12


def view_of(**fields: int) -> ClusterView:
    return ClusterView([WorkerView(id=1, role="prefill", epoch="e", theta=1, kv_total=1000, **fields)], [])


@pytest.mark.parametrize(
    ("held", "matched", "fields", "found"),
    [
        ((Held(1, "e", 64, 10),), 100, {"kv_written": 946}, {1: 64}),
        ((Held(1, "e", 64, 10),), 100, {"kv_written": 990}, {1: 20}),
        ((Held(1, "e", 64, 10),), 100, {"kv_written": 1010}, {}),
        ((Held(1, "e", 64, 10),), 100, {"kv_written": 800, "kv_pinned": 300}, {}),
        ((Held(1, "e", 64, 10),), 32, {}, {1: 32}),
        ((Held(1, "e", 64, 10),), 0, {}, {}),
        ((Held(1, "other", 64, 10),), 100, {}, {}),
        ((Held(2, "e", 64, 10),), 100, {}, {}),
    ],
    ids=["just held", "tail forgotten", "forgotten", "pins shrink the pool", "matched", "nothing matches", "restarted", "gone"],
)
def test_edges_of_what_is_held(held: tuple[Held, ...], matched: int, fields: dict[str, int], found: dict[int, int]) -> None:
    assert dict(still_held(held, matched, view_of(**fields))) == found


def test_the_latest_prefill_comes_first_and_a_few_are_remembered() -> None:
    held: tuple[Held, ...] = ()
    for worker in (1, 2, 3, 2, 4, 5):
        handle = Handle(worker, "e", "s", "r", 8, "", 0.0, b"")
        result = PrefillResult(
            handle=handle, queue_s=0, read_s=0, prefill_s=0, read_tokens=0, cached_tokens=0, kv_written=worker * 100
        )
        held = after_prefill(held, result, 8)
    assert [(h.worker, h.written) for h in held] == [(5, 500), (4, 400), (2, 200), (3, 300)]


async def test_another_decode_worker_with_slack_takes_a_prefill(store: StateStore) -> None:
    cluster = SimCluster(store)
    await cluster.add(21, "decode", kv_free=100_000)
    await cluster.add(22, "decode", kv_free=50_000)
    driver = Driver(cluster, store, make_graph(policy={"name": "predictive"}))
    tokens = fresh_tokens(24)
    first = await driver.correct(tokens)
    assert (first.ampd["decode_worker"], first.ampd["deflected"]) == (21, False)
    await cluster.report(cluster.workers[21], running_s=60.0)
    following = tokens + first.tokens + fresh_tokens(9)
    second = await driver.correct(following)
    figures = second.ampd
    assert (figures["path"], figures["prefill_worker"], figures["decode_worker"]) == ("remote", 22, 21)
    assert figures["deflected"]
    assert len(cluster.workers[22].prefills) == 1
    assert figures["history_read_tokens"] == figures["l_hist"] > 0
    await driver.check_clean("s")


async def test_a_session_moves_when_that_is_cheaper(store: StateStore) -> None:
    cluster = SimCluster(store)
    await cluster.add(21, "decode", kv_free=100_000)
    await cluster.add(22, "decode", kv_free=50_000)
    driver = Driver(cluster, store, make_graph(policy={"name": "local_only", "rebind": "when_cheaper"}))
    tokens = fresh_tokens(24)
    first = await driver.correct(tokens)
    stays = await driver.correct(tokens)
    assert (first.ampd["decode_worker"], stays.ampd["decode_worker"], stays.ampd["rebound"]) == (21, 21, None)
    await cluster.report(cluster.workers[21], running_s=60.0)
    moved = await driver.correct(tokens + first.tokens + fresh_tokens(9))
    figures = moved.ampd
    assert (figures["decode_worker"], figures["rebound"], figures["l_hist"]) == (22, "cheaper", 0)
    assert figures["rebind_gain_s"] > figures["rebind_cost_s"] > 0
    counters = driver.coordinator.counters.registry
    assert counters.get_sample_value("ampd_session_rebinds_total", {"cause": "cheaper"}) == 1
    await driver.check_clean("s")


async def test_a_move_that_another_coordinator_won_is_not_ours(store: StateStore) -> None:
    """Both find the session's worker busy; the other one moves it first, elsewhere, and its figures are its own."""
    cluster = SimCluster(store)
    here, _, there = [await cluster.add(id, "decode", kv_free=free) for id, free in ((21, 90_000), (22, 50_000), (23, 80_000))]
    await cluster.report(here, running_s=60.0)
    row = await store.bind("s", here.id, here.epoch, 100)
    view = await store.view()
    worker = view.find(here.id)
    assert worker is not None
    graph = make_graph(policy={"name": "local_only", "rebind": "when_cheaper"})
    binder = Binder(store, graph.policy, CoarseCostModel())
    asked = read_request(ask(fresh_tokens(24)), graph.model.max_model_len, graph.targets, {})
    placement = Placement("s", 2, here.id, 0, 24, asked.ttft_target_s, asked.itl_target_s)
    await store.bind("s", there.id, there.epoch, 100, replace=here.epoch)
    moved = await binder.move(Binding(row, worker, view), SessionKey("s"), asked, placement)
    assert (moved.worker.id, moved.rebinding) == (23, None)
    assert moved.row is not None
    assert (moved.row.worker, moved.row.epoch) == (23, there.epoch)


async def test_a_session_never_moves_unasked(store: StateStore) -> None:
    cluster = SimCluster(store)
    await cluster.add(21, "decode", kv_free=100_000)
    await cluster.add(22, "decode", kv_free=50_000)
    driver = Driver(cluster, store, make_graph(policy={"name": "local_only"}))
    tokens = fresh_tokens(24)
    first = await driver.correct(tokens)
    await cluster.report(cluster.workers[21], running_s=60.0)
    second = await driver.correct(tokens + first.tokens)
    assert (second.ampd["decode_worker"], second.ampd["rebound"]) == (21, None)


@pytest.mark.parametrize("rule", ["kv_room", "predicted_load"])
async def test_new_sessions_are_bound_by_the_graphs_rule(store: StateStore, rule: str) -> None:
    cluster = SimCluster(store)
    for id in (21, 22):
        await cluster.add(id, "decode")
    await cluster.report(cluster.workers[21], kv_free=90_000, running=32, context=9_000)
    await cluster.report(cluster.workers[22], kv_free=80_000, running=1, context=100)
    driver = Driver(cluster, store, make_graph(policy={"binding": rule}))
    answer = await driver.correct(fresh_tokens(24))
    assert answer.ampd["decode_worker"] == {"kv_room": 21, "predicted_load": 22}[rule]


@asynccontextmanager
async def outage(folder: Path) -> AsyncIterator[tuple[RedisServer, list[ResilientStore]]]:
    """A Redis that can be stopped, and the stores of two Coordinators over it."""
    server = RedisServer(folder)
    server.start()
    settings = StoreSettings(deadline_s=0.5, stale_after_s=1000.0)
    stores = [ResilientStore(RedisStore(server.url, None, "search", settings), settings) for _ in range(2)]
    try:
        for store in stores:
            await store.connect()
        yield server, stores
    finally:
        server.stop()
        for store in stores:
            await store.close()


async def test_without_redis_a_session_of_another_coordinator_is_found_at_its_worker(tmp_path: Path) -> None:
    async with outage(tmp_path) as (server, stores):
        cluster = SimCluster(stores[0])
        await cluster.add(21, "decode", kv_free=50_000)
        await cluster.add(22, "decode", kv_free=100_000)
        served, other = (Driver(cluster, store) for store in stores)
        tokens = fresh_tokens(24)
        first = await served.correct(tokens)
        assert first.ampd["decode_worker"] == 22
        with pytest.raises(RequestError):
            await other.round(ask([]))
        await stores[1].view()
        server.stop()
        second = await other.correct(tokens + first.tokens + fresh_tokens(5))
        assert second.ampd["degraded"]
        assert second.ampd["decode_worker"] == 22
        assert second.ampd["l_hist"] == 24
