"""What a client may ask of a round: latency targets, priority. Where they arrive, and what they change."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from driver import Driver, ask, fresh_tokens
from sim_caller import SimCaller
from sim_cluster import SimCluster
from sim_model import make_graph

from ampd.errors import RequestError
from ampd.state.base import StateStore

TARGETS = {"ttft_s": 2.0, "itl_s": 0.1}


def driver_of(cluster: SimCluster, store: StateStore, **policy: Any) -> Driver:
    return Driver(cluster, store, make_graph(targets=TARGETS, policy=policy))


@pytest.mark.parametrize(
    ("metadata", "annotations", "ttft_s", "itl_s"),
    [
        ({}, [], 2.0, 0.1),
        ({"ttft-ms": "500"}, [], 0.5, 0.1),
        ({"slo-ttft-ms": "250.5", "tpot-ms": "20"}, [], 0.2505, 0.02),
        ({}, ["other:1", "slo-tpot-ms:40"], 2.0, 0.04),
        ({"ttft-ms": "500"}, ["slo-ttft-ms:900"], 0.5, 0.1),
    ],
    ids=["the graph's", "header", "default prefix", "annotation", "header first"],
)
@pytest.mark.parametrize("path", ["remote", "local"])
async def test_targets_and_priority_reach_workers_queue_and_answer(
    store: StateStore, cluster: SimCluster, metadata: dict[str, str], annotations: list[str], ttft_s: float, itl_s: float, path: str
) -> None:
    driver = driver_of(cluster, store, force=[path])
    raw = ask(fresh_tokens(20), annotations=annotations, routing={"priority": -3})
    answer = await driver.round(raw, SimCaller(metadata))
    assert (answer.ampd["ttft_target_s"], answer.ampd["itl_target_s"]) == (pytest.approx(ttft_s), pytest.approx(itl_s))
    assert answer.ampd["priority"] == -3
    decoded = cluster.workers[answer.ampd["decode_worker"]].decodes[0]
    assert (decoded.ttft_target_s, decoded.itl_target_s) == (pytest.approx(ttft_s), pytest.approx(itl_s))
    assert decoded.priority == -3
    if path == "remote":
        prefilled = cluster.workers[answer.ampd["prefill_worker"]].prefills[0]
        assert (prefilled.ttft_target_s, prefilled.priority) == (pytest.approx(ttft_s), -3)


async def test_the_queue_shows_a_rounds_own_target_and_priority(store: StateStore, cluster: SimCluster) -> None:
    driver = driver_of(cluster, store, force=["local"])
    for id in (21, 22):
        cluster.workers[id].hold("queued")
    round = asyncio.create_task(driver.round(ask(fresh_tokens(9), routing={"priority": 7}), SimCaller({"ttft-ms": "300"})))
    async with asyncio.timeout(5):
        while not (queued := [e for id in (21, 22) for e in await store.queue(id)]):
            await asyncio.sleep(0.01)
    assert [(e.ttft_target_s, e.priority) for e in queued] == [(pytest.approx(0.3), 7)]
    for id in (21, 22):
        cluster.workers[id].let_go("queued")
    await round
    await driver.check_clean("s")


@pytest.mark.parametrize("text", ["fast", "", "0", "-5", "nan", "inf", "1e12"])
@pytest.mark.parametrize(
    ("metadata", "annotations", "field"),
    [
        ("ttft-ms", "", "x-slo-ttft-ms"),
        ("slo-tpot-ms", "", "x-slo-tpot-ms"),
        ("", "slo-ttft-ms:", "nvext.annotations slo-ttft-ms"),
    ],
)
async def test_a_target_that_is_no_time_is_refused(
    store: StateStore, cluster: SimCluster, text: str, metadata: str, annotations: str, field: str
) -> None:
    driver = driver_of(cluster, store)
    caller = SimCaller({metadata: text} if metadata else {})
    with pytest.raises(RequestError) as error:
        await driver.round(ask(fresh_tokens(9), annotations=[annotations + text] if annotations else []), caller)
    assert str(error.value).startswith(f"{field} is {text!r}: give a number of milliseconds above 0")
    await driver.check_clean("s")


async def test_a_rounds_own_targets_count_it_as_attained_or_missed(store: StateStore, cluster: SimCluster) -> None:
    driver = driver_of(cluster, store)
    await driver.round(ask(fresh_tokens(9)))  # 10 ms and 1 ms, the simulated workers say: within the graph's targets
    await driver.round(ask(fresh_tokens(9)), SimCaller({"ttft-ms": "5"}))
    await driver.round(ask(fresh_tokens(9)), SimCaller({"tpot-ms": "0.5"}))

    def total(name: str, slo: str) -> float | None:
        return driver.coordinator.counters.registry.get_sample_value(f"ampd_slo_{name}_total", {"slo": slo})

    assert [total("attained", slo) for slo in ("ttft", "itl", "round")] == [2, 2, 1]
    assert [total("missed", slo) for slo in ("ttft", "itl", "round")] == [1, 1, 2]
