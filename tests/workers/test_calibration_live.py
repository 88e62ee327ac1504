"""Live workers around simulated engines, some of them slower than their profile says: what they learn, and what is made of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace
from sim_engines import cost, engines, graph, prompt
from sim_workers import Cluster, decode_request, prefill_request, serve, upkeep

from ampd.config import Policy
from ampd.cost_model.calibration import Pace
from ampd.policy.registry import make_policy
from ampd.policy.types import ClusterView, Decision, Role, Round
from ampd.workers.prefill import serve_prefill
from ampd.workers.worker import Worker

# Twenty times the usual: three seconds here are a minute.
BRISK = Pace(window_s=0.1, time_s=0.4)
ROLES: tuple[Role, ...] = ("prefill", "prefill", "decode", "decode")
_numbers = iter(range(10**9))


@asynccontextmanager
async def slowed(folder: Path, failures: dict[str, Any], pace: Pace | None, **sections: Any) -> AsyncIterator[Cluster]:
    """Two prefill and two decode workers on engines with those failures."""
    names = ("p", 0), ("p", 1), ("d", 0), ("d", 1)
    engined = engines(graph(folder, {"failures": failures}, **sections), *names)
    async with engined as found, upkeep(found, folder, ROLES, pace) as made:
        yield made


async def prefills(cluster: Cluster, worker: Worker, count: int, seed: int) -> None:
    """Remote prefills, two at a time: the second waits in the engine for the first."""
    requests = [prefill_request(f"p{next(_numbers)}", prompt(400, seed + i)) for i in range(count)]
    for pair in zip(requests[::2], requests[1::2], strict=True):
        for result in await asyncio.gather(*(serve_prefill(worker, cluster, request) for request in pair)):
            await worker.release(result.handle)


async def rounds(worker: Worker, count: int, seed: int, tokens: int = 200, answer: int = 10) -> None:
    """Local rounds, one after the other."""
    for i in range(count):
        _, last = await serve(worker, decode_request(f"d{next(_numbers)}", prompt(tokens, seed + i), count=answer))
        await worker.release(last.handle)


async def remote_rounds(cluster: Cluster, decode: Worker, count: int, seed: int) -> None:
    """Rounds that the first prefill worker computes and this decode worker reads, one after the other."""
    for i in range(count):
        tokens, number = prompt(200, seed + i), next(_numbers)
        result = await serve_prefill(cluster.p, cluster, prefill_request(f"r{number}", tokens))
        _, last = await serve(decode, decode_request(f"r{number}", tokens, result.handle, count=2))
        await cluster.p.release(result.handle)
        await decode.release(last.handle)


async def load(cluster: Cluster) -> None:
    """Something for every worker to do."""
    p0, p1, d0, d1 = cluster.workers
    await asyncio.gather(prefills(cluster, p0, 16, 0), prefills(cluster, p1, 16, 100), rounds(d0, 10, 200), rounds(d1, 10, 300))
    for decode, seed in ((d0, 400), (d1, 500)):  # one after the other: both read from the same worker, whose link they would share
        await remote_rounds(cluster, decode, 9, seed)


async def view(cluster: Cluster) -> ClusterView:
    """The cluster as routing sees it."""
    for reporter in cluster.reporters:
        await reporter._report(audit=False)
    return await cluster.store.view()


def decide(folder: Path, seen: ClusterView, decode: int, seed: int = 0, **options: Any) -> Decision:
    """A first round of 1,000 tokens: 0.2 s of prefill, and 0.12 s more for the transfer if it is remote."""
    placed = Round("s", 1, decode, 0, 1000, ttft_target_s=1.0, itl_target_s=0.1)
    policy = make_policy(Policy.model_validate({"name": "predictive", "predictive": {"deflect": False}}))
    return policy.route(placed, seen, cost(folder), Random(seed), **options)


def slow_or_wait(seen: ClusterView) -> ClusterView:
    """There is only the slow prefill worker, and 0.25 s of others' prefills on the decode worker that is not slow."""
    return ClusterView(seen.prefill[1:], [replace(seen.decode[0], queued_s=0.25), *seen.decode[1:]])


async def test_engines_slowed_by_half_are_tracked_and_decisions_change(tmp_path: Path) -> None:
    async with slowed(tmp_path, {"replicas": [1], "slow_factor": 2.0}, BRISK) as cluster:
        before = await view(cluster)
        assert {decide(tmp_path, before, 2, seed, forced="remote").worker for seed in range(20)} == {0, 1}, "they seem the same"
        assert decide(tmp_path, slow_or_wait(before), 2).path == "remote"
        await load(cluster)
        after = await view(cluster)
        p0, p1, d0, d1 = *after.prefill, *after.decode
        assert [w.t_pre_factor for w in (p0, p1)] == [pytest.approx(1.0, rel=0.25), pytest.approx(2.0, rel=0.25)]
        assert [w.t_dec_factor for w in (d0, d1)] == [pytest.approx(1.0, rel=0.25), pytest.approx(2.0, rel=0.25)]
        assert [w.t_pre_factor for w in (d0, d1)] == [pytest.approx(1.0, rel=0.25), pytest.approx(2.0, rel=0.25)]
        assert [w.t_kv_factor for w in (d0, d1)] == [pytest.approx(1.0, rel=0.25), pytest.approx(2.0, rel=0.25)]
        assert {decide(tmp_path, after, 2, seed, forced="remote").worker for seed in range(20)} == {0}
        assert decide(tmp_path, slow_or_wait(after), 2).path == "local"
        assert decide(tmp_path, after, 3).estimates["local"] == pytest.approx(0.4, rel=0.25)
        assert decide(tmp_path, after, 3).estimate_s == pytest.approx(0.4, rel=0.25), "so the queue is charged as much"
        found = await cluster.samples()
        assert found["ampd_cost_model_factor"][("t_pre", "prefill-1")] == p1.t_pre_factor
        assert found["ampd_cost_model_factor"][("t_dec", "decode-3")] == d1.t_dec_factor
        ratios = {fn: found["ampd_cost_model_error_ratio_sum"][(fn,)] for fn in ("t_pre", "t_dec")}
        counts = {fn: found["ampd_cost_model_error_ratio_count"][(fn,)] for fn in ("t_pre", "t_dec")}
        assert all(0.5 < ratios[fn] / counts[fn] < 0.95 for fn in ratios), "predicted over measured, without the factors"


async def test_a_wait_in_the_engine_is_no_prefill_time(tmp_path: Path) -> None:
    """Of two prefills in the engine the second waits for the first: it takes as long as alone."""
    async with slowed(tmp_path, {}, BRISK) as cluster:
        await prefills(cluster, cluster.p, 20, 400)
        assert cluster.p.judge.factor("t_pre") == pytest.approx(1.0, rel=0.25)


async def test_without_load_nothing_drifts(tmp_path: Path) -> None:
    async with slowed(tmp_path, {"slow_factor": 2.0}, BRISK) as cluster:
        await prefills(cluster, cluster.p, 8, 500)
        before = [worker.row() for worker in cluster.workers]
        assert before[0].t_pre_factor > 1.2
        await asyncio.sleep(0.6)  # six windows
        assert [worker.row() for worker in cluster.workers] == before


async def test_prefills_beside_a_batch_leave_t_dec_alone_and_teach_t_mixed(tmp_path: Path) -> None:
    """A long round decodes while others' prefills go through the same engine in chunks."""
    policy = {"local_prefill": "chunked"}
    async with slowed(tmp_path, {"slow_factor": 0.5}, BRISK, policy=policy) as cluster:
        long = asyncio.create_task(rounds(cluster.d, 1, 600, answer=100))
        await asyncio.sleep(0.1)
        await rounds(cluster.d, 3, 700, tokens=4200, answer=2)
        await long
        found = await cluster.samples()
        sums, counts = (found[f"ampd_cost_model_error_ratio_{what}"] for what in ("sum", "count"))
        assert counts[("t_mixed",)] == 3
        assert sums[("t_mixed",)] / 3 == pytest.approx(2.0, rel=0.2)
        assert sums[("t_dec",)] / counts[("t_dec",)] == pytest.approx(2.0, rel=0.2)
        assert cluster.d.judge.factor("t_mixed") < 0.8


async def test_switched_off_every_factor_is_one(tmp_path: Path) -> None:
    async with slowed(tmp_path, {"slow_factor": 2.0}, None) as cluster:
        await prefills(cluster, cluster.p, 4, 900)
        await rounds(cluster.d, 4, 900)
        seen = await view(cluster)
        factors = [(w.t_pre_factor, w.t_dec_factor, w.t_mixed_factor, w.t_kv_factor) for w in (*seen.prefill, *seen.decode)]
        assert factors == [(1.0, 1.0, 1.0, 1.0)] * 4
        found = await cluster.samples()
        assert set(found["ampd_cost_model_factor"].values()) == {1.0}
        assert found["ampd_cost_model_error_ratio_count"][("t_pre",)] > 0, "what the profile is worth is still shown"


async def test_a_restarted_worker_begins_at_one(tmp_path: Path) -> None:
    async with slowed(tmp_path, {"slow_factor": 2.0}, BRISK) as cluster:
        await prefills(cluster, cluster.p, 8, 800)
        assert cluster.p.row().t_pre_factor > 1.2
        again = cluster._worker(0, "prefill", cluster.p.engine)
        assert again.row().t_pre_factor == 1.0
