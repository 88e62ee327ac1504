from __future__ import annotations

import asyncio
from typing import Any

import pytest
from driver import Driver, ask, fresh_tokens
from redis_server import RedisServer
from sim_caller import SimCaller
from sim_cluster import SimCluster
from sim_model import BLOCK, answer_to, make_graph

from ampd.config import Graph
from ampd.errors import NoWorkers, RequestError
from ampd.state.base import StateStore
from ampd.state.redis_store import RedisStore
from ampd.state.resilient import ResilientStore
from ampd.state.settings import StoreSettings


def forced(*paths: str) -> Graph:
    return make_graph(policy={"force": list(paths)})


@pytest.mark.parametrize("paths", [("local",), ("remote",), ("remote", "local", "local"), ("local", "remote", "remote")])
async def test_a_session_grows_on_its_history_whatever_the_paths(
    cluster: SimCluster, store: StateStore, paths: tuple[str, ...]
) -> None:
    driver = Driver(cluster, store, forced(*paths))
    tokens, held = fresh_tokens(10), 0
    for number in range(1, 7):
        answer = await driver.correct(tokens)
        figures = answer.ampd
        assert figures["path"] == paths[(number - 1) % len(paths)]
        assert figures["reason"] == "forced"
        assert (figures["round"], figures["l_hist"]) == (number, held)
        assert figures["l_hist"] + figures["l_incr"] == figures["prompt_tokens"] == len(tokens)
        assert figures["recompute"] is None
        assert not figures["rewritten"]
        if figures["path"] == "remote":
            assert figures["history_read_tokens"] == held
            assert figures["increment_read_tokens"] == len(tokens) - held
        held = (len(tokens) + len(answer.tokens) - 1) // BLOCK * BLOCK
        tokens = tokens + answer.tokens + fresh_tokens(number)
    assert len({d.session for w in cluster.workers.values() for d in w.decodes}) == 1
    assert sum(bool(w.decodes) for w in cluster.workers.values()) == 1, "one decode worker a session"
    await driver.check_clean("s")
    assert len(cluster.pins()) == 1


@pytest.mark.parametrize("path", ["local", "remote"])
async def test_rewritten_context_shortens_the_history_and_is_flagged(cluster: SimCluster, store: StateStore, path: str) -> None:
    driver = Driver(cluster, store, forced(path))
    tokens = fresh_tokens(40)
    await driver.correct(tokens)
    tokens[17] += 1
    figures = (await driver.correct(tokens + fresh_tokens(5))).ampd
    assert (figures["l_hist"], figures["rewritten"]) == (16, True)
    figures = (await driver.correct(fresh_tokens(30))).ampd
    assert (figures["l_hist"], figures["rewritten"]) == (0, True)
    await driver.check_clean("s")


@pytest.mark.parametrize("path", ["local", "remote"])
async def test_the_same_prompt_again_leaves_a_block_to_compute(cluster: SimCluster, store: StateStore, path: str) -> None:
    driver = Driver(cluster, store, forced(path))
    tokens = fresh_tokens(4 * BLOCK)
    await driver.correct(tokens)
    assert (await driver.correct(tokens)).ampd["l_hist"] == 3 * BLOCK
    await driver.check_clean("s")


async def test_an_expired_handle_counts_for_nothing(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store, forced("remote"))
    for worker in cluster.workers.values():
        worker.expires_in_s = -1.0 if worker.role == "decode" else 1000.0
    tokens = fresh_tokens(20)
    answer = await driver.correct(tokens)
    figures = (await driver.correct(tokens + answer.tokens + fresh_tokens(3))).ampd
    assert (figures["l_hist"], figures["recompute"]) == (0, None)


async def test_final_round_leaves_nothing(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store, forced("remote", "local"))
    for session in ("a", "b"):
        tokens = fresh_tokens(20)
        for number in range(3 if session == "a" else 4):
            answer = await driver.correct(tokens, session, final=number == (2 if session == "a" else 3))
            tokens = tokens + answer.tokens + fresh_tokens(6)
    await driver.check_clean()
    assert cluster.pins() == set()
    assert await store.sessions() == 0


async def test_several_choices_go_local_unpinned_and_keep_the_history(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store, forced("remote"))
    tokens = fresh_tokens(24)
    first = await driver.correct(tokens)
    longer = tokens + first.tokens + fresh_tokens(6)
    figures = (await driver.correct(longer, sampling_options={"n": 3})).ampd
    assert (figures["path"], figures["reason"], figures["l_hist"]) == ("local", "engine_needs_local", 24)
    assert (await driver.correct(longer)).ampd["l_hist"] == 24, "the side round has not cost the session its history"
    await driver.check_clean("s")


async def test_prompt_logprobs_go_local_and_are_pinned(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store, forced("remote"))
    figures = (await driver.correct(fresh_tokens(24), output_options={"prompt_logprobs": 1})).ampd
    assert figures["reason"] == "engine_needs_local"
    await driver.check_clean("s")
    assert len(cluster.pins()) == 1


async def test_without_a_session_rounds_stand_alone(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store)
    tokens = fresh_tokens(24)
    for _ in range(2):
        figures = (await driver.correct(tokens, None)).ampd
        assert (figures["session"], figures["round"], figures["l_hist"]) == (None, 1, 0)
    assert await store.sessions() == 0
    await driver.check_clean()
    assert cluster.pins() == set()


async def test_a_derived_session_is_found_again_and_flagged(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store)
    opening = [*fresh_tokens(9), 2, *fresh_tokens(7), 2]
    first = await driver.correct([*opening, 7, 7], None)
    assert first.ampd["derived"]
    second = await driver.correct([*opening, 7, 7, *first.tokens, 2, *fresh_tokens(5), 2, 7, 7], None)
    assert second.ampd["session"] == first.ampd["session"]
    assert (second.ampd["round"], second.ampd["l_hist"]) == (2, 20)


async def test_concurrent_rounds_of_a_session_all_work_and_leak_nothing(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store)
    tokens = fresh_tokens(32)
    first = await driver.correct(tokens)
    longer = tokens + first.tokens
    answers = await asyncio.gather(*(driver.correct(longer + fresh_tokens(n)) for n in range(1, 9)))
    assert sorted(a.ampd["l_hist"] for a in answers)[-1] == 32, "one of them had the history"
    await driver.check_clean("s")
    assert len(cluster.pins()) == 1


async def test_the_next_round_may_follow_the_last_token_at_once(
    cluster: SimCluster, store: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(cluster, store)
    close = store.close_round

    async def slow_close(*args: Any) -> Any:
        await asyncio.sleep(0.1)
        return await close(*args)

    monkeypatch.setattr(store, "close_round", slow_close)
    tokens, said = fresh_tokens(24), []
    async for output in driver.coordinator.serve(ask(tokens), SimCaller()):
        said += output["token_ids"]
        if output.get("finish_reason"):
            assert (await driver.correct(tokens + said)).ampd["l_hist"] == 24


async def test_concurrent_first_rounds_agree_on_one_binding(cluster: SimCluster, store: StateStore) -> None:
    drivers = [Driver(cluster, store, seed=n) for n in range(2)]
    answers = await asyncio.gather(*(drivers[n % 2].correct(fresh_tokens(20)) for n in range(8)))
    assert len({a.ampd["decode_worker"] for a in answers}) == 1
    for driver in drivers:
        await driver.settle()
    await drivers[0].check_clean("s")


async def test_two_coordinators_share_a_session(cluster: SimCluster, store: StateStore) -> None:
    drivers = [Driver(cluster, store, forced("remote", "local"), seed=n) for n in range(2)]
    tokens, workers = fresh_tokens(20), set()
    for number in range(6):
        answer = await drivers[number % 2].correct(tokens)
        workers.add(answer.ampd["decode_worker"])
        assert answer.ampd["round"] == number + 1
        assert (answer.ampd["l_hist"] > 0) == (number > 0)
        tokens = tokens + answer.tokens + fresh_tokens(5)
    assert len(workers) == 1


async def test_sessions_bind_to_the_decode_worker_with_most_room(cluster: SimCluster, store: StateStore) -> None:
    driver = Driver(cluster, store)
    await cluster.report(cluster.workers[21], kv_free=1_000)
    await cluster.report(cluster.workers[22], kv_free=3_500)
    bound = [
        (await driver.correct(fresh_tokens(2_000), "a", max_tokens=2)).ampd["decode_worker"],
        (await driver.correct(fresh_tokens(20), "b", max_tokens=2)).ampd["decode_worker"],
        (await driver.correct(fresh_tokens(20), "c", routing={"expected_output_tokens": 900})).ampd["decode_worker"],
        (await driver.correct(fresh_tokens(20), "d")).ampd["decode_worker"],
    ]
    assert bound == [22, 22, 22, 21], "prompts and expected outputs are promised as sessions bind"


async def test_usage_counts_prompt_answer_and_cached_tokens(cluster: SimCluster, store: StateStore) -> None:
    for path in ("local", "remote"):
        driver = Driver(cluster, store, forced(path))
        tokens = fresh_tokens(24)
        first = await driver.correct(tokens, path)
        second = await driver.correct(tokens + first.tokens + fresh_tokens(4), path, max_tokens=5)
        assert first.usage["prompt_tokens_details"] == {"cached_tokens": 0}
        assert second.usage == {
            "prompt_tokens": 31,
            "completion_tokens": 5,
            "total_tokens": 36,
            "prompt_tokens_details": {"cached_tokens": 24},
        }


async def test_engine_data_only_when_asked_for(cluster: SimCluster, store: StateStore) -> None:
    answer = await Driver(cluster, store).round(ask(fresh_tokens(9), extra_args=None))
    assert "engine_data" not in answer.outputs[-1]
    assert "completion_usage" in answer.outputs[-1]


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (ask([]), "prompt is empty"),
        (ask(fresh_tokens(4096)), "4096 tokens, but the model's context is 4096"),
        (ask(fresh_tokens(96), max_tokens=4001), "max_tokens is 4001"),
        (ask(fresh_tokens(96), stop_conditions={"max_tokens": 5, "min_tokens": 6}), "min_tokens is 6"),
        (ask(fresh_tokens(96), "x" * 257), "257 bytes"),
        (ask(fresh_tokens(96), refuse=True), "the engine says no"),
    ],
)
async def test_bad_requests_are_refused_and_leave_nothing(
    cluster: SimCluster, store: StateStore, raw: dict[str, object], text: str
) -> None:
    for path in ("local", "remote"):
        driver = Driver(cluster, store, forced(path))
        with pytest.raises(RequestError, match=text):
            await driver.round(raw)
        await driver.check_clean()
        assert cluster.pins() == set()


async def test_no_decode_worker_is_said_so(store: StateStore) -> None:
    driver = Driver(SimCluster(store), store)
    with pytest.raises(NoWorkers, match="decode workers running"):
        await driver.round(ask(fresh_tokens(8)))


async def test_serving_goes_on_while_redis_is_away(tmp_path_factory: pytest.TempPathFactory) -> None:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    settings = StoreSettings(deadline_s=0.5, stale_after_s=1000.0)
    store = ResilientStore(RedisStore(server.url, None, "outage", settings), settings)
    try:
        await store.connect()
        cluster = SimCluster(store)
        await cluster.add(11, "prefill")
        await cluster.add(21, "decode")
        driver = Driver(cluster, store)
        tokens = fresh_tokens(20)
        first = await driver.correct(tokens)
        server.stop()
        tokens += first.tokens + fresh_tokens(4)
        for _ in range(2):
            answer = await driver.correct(tokens)
            assert answer.ampd["degraded"]
            tokens += answer.tokens + fresh_tokens(4)
        assert (await driver.correct(fresh_tokens(9), "new")).ampd["degraded"]
        server.start()
        async with asyncio.timeout(20):
            while (answer := await driver.correct(tokens)).ampd["degraded"]:
                await asyncio.sleep(0.1)
        assert (await driver.correct(tokens + answer.tokens)).ampd["l_hist"] > 0
        await driver.settle()
        await cluster.audit()  # an enqueue that nobody waits for may be written after its task has left
        await driver.check_clean("s", "new")
    finally:
        server.stop()
        await store.close()


async def test_the_reference_model_needs_every_token() -> None:
    tokens = fresh_tokens(12)
    changed = [tokens[0] + 1, *tokens[1:]]
    assert answer_to(tokens, 3) != answer_to(changed, 3)
