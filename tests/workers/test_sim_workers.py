"""Workers around simulated engines: a session's rounds through their real code, prefills deflected to another decode worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from sim_engines import BLOCK, engines, graph, prompt, right
from sim_workers import Cluster, decode_request, prefill_request, serve, upkeep

from ampd.workers.prefill import serve_prefill


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    engined = engines(graph(tmp_path, {"speed": 10.0}), ("p", 0), ("d", 0), ("d", 1))
    async with engined as found, upkeep(found, tmp_path) as made:
        yield made


async def test_a_prefill_deflected_to_another_decode_worker(cluster: Cluster) -> None:
    """It reads the history from the bound worker, which then reads the increment from it; all pins end."""
    first = prompt(300, 1)
    answer, last = await serve(cluster.d, decode_request("one", first))
    assert answer == right(first, 6)
    second = [*first, *answer, *prompt(100, 2)]
    result = await serve_prefill(cluster.other, cluster, prefill_request("two", second, last.handle))
    assert (result.handle.worker, result.read_tokens, result.recompute) == (2, 304, None)
    assert result.kv_written == cluster.other.engine.load().kv_written >= len(second)
    answer, last = await serve(cluster.d, decode_request("two", second, result.handle, last.handle))
    assert answer == right(second, 6)
    assert last.stats is not None
    assert (last.stats.read_tokens, last.stats.cached_tokens) == (len(second) - 304, 304)
    await cluster.other.release(result.handle)  # as the Coordinator does at the first token
    await cluster.d.release(last.handle)
    await cluster.idle()


async def test_a_deflected_prefill_takes_the_turn_that_local_prefills_share(cluster: Cluster) -> None:
    long = asyncio.create_task(serve_prefill(cluster.other, cluster, prefill_request("long", prompt(6000, 3), ttft_target_s=0.1)))
    while not cluster.other.queue.running_s():
        await asyncio.sleep(0)
    local = asyncio.create_task(serve(cluster.other, decode_request("local", prompt(100, 4))))
    await asyncio.sleep(0.02)
    assert [task.id for task in cluster.other.queue.waiting] == ["local"]
    await cluster.other.release((await long).handle)
    answer, last = await local
    assert answer == right(prompt(100, 4), 6)
    assert last.stats is not None
    assert last.stats.queue_s > 0.01
    await cluster.other.release(last.handle)
    await cluster.idle()


async def test_a_prefills_priority_reaches_its_queue(cluster: Cluster) -> None:
    requests = [prefill_request(str(i), prompt(3000, i), priority=i) for i in range(4)]
    jobs = [asyncio.create_task(serve_prefill(cluster.p, cluster, request)) for request in requests]
    while not cluster.p.queue.waiting:
        await asyncio.sleep(0)
    assert [(task.id, task.priority) for task in cluster.p.queue.waiting] == [("2", 2), ("3", 3)]
    for result in await asyncio.gather(*jobs):
        await cluster.p.release(result.handle)
    await cluster.idle()


async def test_the_row_says_what_routing_needs(cluster: Cluster) -> None:
    round = asyncio.create_task(serve(cluster.d, decode_request("one", prompt(1000, 5))))
    while not cluster.d.row().context:
        await asyncio.sleep(0)
    row = cluster.d.row()
    assert 1000 <= row.context < 1010
    assert row.running == 1
    assert row.kv_written >= 1000
    await cluster.d.release((await round)[1].handle)


async def test_metrics_count_what_happened(cluster: Cluster) -> None:
    first = prompt(300, 6)
    answer, last = await serve(cluster.d, decode_request("one", first))
    second = [*first, *answer, *prompt(100, 7)]
    result = await serve_prefill(cluster.p, cluster, prefill_request("two", second, last.handle))
    stale = await serve_prefill(cluster.p, cluster, prefill_request("again", second, last.handle))  # claimed by "two" already
    assert stale.recompute == "claimed"
    answer, last = await serve(cluster.d, decode_request("two", second, result.handle, last.handle))
    await cluster.p.release(result.handle)
    await cluster.p.release(stale.handle)
    await cluster.d.release(last.handle)
    await cluster.idle()
    for reporter in cluster.reporters * 2:  # what all have said is seen by all
        await reporter._report(audit=True)
    found = await cluster.samples()
    assert found["ampd_kv_read_bytes_total"] == {("history",): 304.0, ("increment",): len(second) - 304.0}
    assert found["ampd_kv_read_seconds_count"] == {("history",): 1.0, ("increment",): 1.0}
    assert found["ampd_kv_fence_rejected_total"] == {("claimed",): 1.0}
    leases = {name: found[f"ampd_kv_lease_{name}_total"][()] for name in ("issued", "released", "read", "expired", "shed")}
    assert leases == {"issued": 4, "released": 3, "read": 1, "expired": 0, "shed": 0}
    assert found["ampd_kv_lease_active"] == {(): 0.0}
    assert found["ampd_prefill_queue_depth"] == {("prefill-0",): 0.0, ("decode-1",): 0.0, ("decode-2",): 0.0}
    assert found["ampd_reorder_duration_seconds_count"] == {(): 0.0}  # nothing ever waited beside another
    assert found["ampd_worker_info"][("1", "decode", "decode-1")] == 1.0
    assert set(found["ampd_window_ttft_seconds"]) == {("prefill-0",)}
    assert set(found["ampd_window_itl_seconds"]) == {("decode-1",)}
    judged = found["ampd_cost_model_error_ratio_count"]
    assert judged == {("t_pre",): 3.0, ("t_kv",): 2.0, ("t_dec",): 2.0, ("t_mixed",): 0.0}
    # The engines run ten times as fast as the profile that the predictions here come from.
    assert found["ampd_cost_model_error_ratio_sum"][("t_pre",)] > 1


async def test_postponements_are_counted(cluster: Cluster) -> None:
    """A prefill that is late whatever comes lets one go first that would else be late too."""
    requests = [
        *(prefill_request(f"busy-{i}", prompt(2000, i), estimate_s=10.0) for i in range(2)),
        prefill_request("late", prompt(500, 8), estimate_s=10.0, ttft_target_s=1e-6),
        prefill_request("short", prompt(100, 9), estimate_s=10.0, ttft_target_s=15.0),
    ]
    jobs = [asyncio.create_task(serve_prefill(cluster.p, cluster, request)) for request in requests]
    for result in await asyncio.gather(*jobs):
        await cluster.p.release(result.handle)
    found = await cluster.samples()
    assert found["ampd_reorder_moves_total"][()] == 1
    assert found["ampd_postponed_max"][()] == 1


async def test_what_waits_is_what_the_mirror_should_have(cluster: Cluster) -> None:
    held = 10 * BLOCK
    requests = [prefill_request(str(i), prompt(2000, i), estimate_s=0.3, elapsed_s=5.0) for i in range(3)]
    jobs = [asyncio.create_task(serve_prefill(cluster.p, cluster, request)) for request in requests]
    jobs.append(
        asyncio.create_task(serve_prefill(cluster.p, cluster, msgspec.structs.replace(requests[0], id="held", l_hist=held)))
    )
    while not cluster.p.queue.waiting:
        await asyncio.sleep(0)
    entries = {entry.id: entry for entry in cluster.p.waiting()}
    assert set(entries) == {"2", "held"}
    assert (entries["held"].l_hist, entries["held"].l_incr, entries["2"].cost_s) == (held, 2000 - held, 0.3)
    assert entries["2"].arrived_at == pytest.approx(time.time() - 5.0, abs=1.0)
    for result in await asyncio.gather(*jobs):
        await cluster.p.release(result.handle)
    assert cluster.p.waiting() == []
