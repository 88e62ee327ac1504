"""The simulated engine's time, room and mishaps. What it has in common with vLLM is in tests/engine/test_engine_contract.py."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from sim_engines import began, cost, engines, graph, play, prompt, right

from ampd.cost_model.scaled import ScaledCostModel
from ampd.errors import EngineDead, SetupError
from ampd.workers.engines.sim_kv import BlockPool


async def test_jobs_take_the_profiles_times(tmp_path: Path) -> None:
    """A lower bound each, with room for a first token that comes late. tests/workers/test_sim_batch.py has exact times, its own."""
    async with engines(graph(tmp_path), ("p", 0), ("d", 0)) as (p, d):
        tokens = prompt(2000)
        began_at = time.monotonic()
        on_p = await play(p, "prefill", tokens, pin=True)
        assert time.monotonic() - began_at >= 0.4  # 2,000 x 0.2 ms
        on_d = await play(d, "decode", tokens, 21, source=on_p.last.params)
        assert on_d.last.kv is not None
        assert on_d.last.kv.read_s >= 0.22  # 20 ms + 2,000 x 0.1 ms
        assert on_d.itl_s >= 0.009
        together = await asyncio.gather(*(play(d, "decode", prompt(64, seed), 21) for seed in range(1, 31)))
        assert 0.036 <= max(played.itl_s for played in together) > on_d.itl_s  # 10 ms + 30 x 1 ms
        assert all(played.tokens == right(prompt(64, seed), 21) for seed, played in enumerate(together, 1))


async def test_speed_divides_all_times(tmp_path: Path) -> None:
    async with engines(graph(tmp_path, {"speed": 10.0}), ("p", 0)) as (quick,), engines(graph(tmp_path), ("p", 0)) as (usual,):
        began_at = time.monotonic()
        slower = asyncio.create_task(play(usual, "prefill", prompt(2000)))
        played = await play(quick, "prefill", prompt(5000))
        assert played.times[0] - began_at >= 0.1  # a tenth of 5,000 x 0.2 ms
        assert played.times[0] < (await slower).times[0]


async def test_transfers_share_a_link(tmp_path: Path) -> None:
    async with engines(graph(tmp_path), ("p", 0), ("d", 0), ("d", 1)) as (p, d0, d1):
        pins = [await play(p, "prefill", prompt(800, seed), pin=True) for seed in (1, 2)]
        sources = [pin.last.params for pin in pins]
        jobs = [play(d, "decode", prompt(800, i + 1), source=sources[i]) for i, d in enumerate((d0, d1))]
        reads = asyncio.gather(*jobs)
        await asyncio.sleep(0.02)
        assert p.load().link_s > 0.1  # two transfers of 100 ms
        times = sorted(played.last.kv.read_s for played in await reads if played.last.kv is not None)
        assert times[0] >= 0.1
        assert times[1] >= 0.2


async def test_a_full_pool_makes_jobs_wait_and_they_answer_right(tmp_path: Path) -> None:
    async with engines(graph(tmp_path, {"speed": 2.0}), ("d", 0)) as (d,):
        pin = await play(d, "decode", prompt(6000, 9), pin=True)
        jobs = [asyncio.create_task(play(d, "decode", prompt(3000, seed), 5)) for seed in range(4)]
        await asyncio.sleep(0.1)
        assert d.load().waiting >= 2
        assert d.load().kv_used <= d.info.kv_total
        await d.release([pin.last.ref or ""])
        assert [p.tokens for p in await asyncio.gather(*jobs)] == [right(prompt(3000, seed), 5) for seed in range(4)]
        assert d.load().kv_used == 0


async def test_the_urgent_job_gets_the_room_first(tmp_path: Path) -> None:
    async with engines(graph(tmp_path, {"speed": 20.0}), ("d", 0)) as (d,):
        ends: list[str] = []

        async def one(id: str, priority: int) -> None:
            await play(d, "decode", prompt(6000, hash(id) % 100), id=id, priority=priority)
            ends.append(id)

        first = asyncio.create_task(one("first", 0))
        while not d.load().running:
            await asyncio.sleep(0)
        await asyncio.gather(first, one("usual", 0), one("urgent", 5))
        assert ends == ["first", "urgent", "usual"]


async def test_a_preempted_job_is_computed_again_and_answers_right(tmp_path: Path) -> None:
    """Four answers of 3,000 tokens grow in a pool of 10,000."""
    async with engines(graph(tmp_path, {"speed": 500.0, "stream_interval": 16}), ("d", 0)) as (d,):
        played = await asyncio.gather(*(play(d, "decode", prompt(100, seed), 3000) for seed in range(4)))
        assert d._batch.preemptions > 0
        assert [p.tokens for p in played] == [right(prompt(100, seed), 3000) for seed in range(4)]
        assert d.load().kv_used == 0


async def test_wrong_kv_gives_another_answer(tmp_path: Path) -> None:
    """Else no test of right tokens could fail: a source that says it is of this prompt, and is of another."""
    async with engines(graph(tmp_path), ("p", 0), ("d", 0)) as (p, d):
        mine, other = [await play(p, "prefill", prompt(200, seed), pin=True) for seed in (1, 2)]
        assert mine.last.params is not None
        wrong = await play(d, "decode", prompt(200, 1), 6, source=other.last.params, cache_salt="wrong")
        answer = await play(d, "decode", prompt(200, 1), 6, source=mine.last.params, cache_salt="right")
        assert answer.tokens == right(prompt(200, 1), 6) != wrong.tokens
        longer = prompt(200, 1) + prompt(100, 3)
        again = await play(d, "decode", longer, 6, cache_salt="wrong")
        assert again.last.kv is not None
        assert again.last.kv.cached_tokens == 192
        assert again.tokens != right(longer, 6), "what is computed after wrong KV is wrong too"


async def test_tokens_that_leave_together_are_the_same_tokens(tmp_path: Path) -> None:
    async with engines(graph(tmp_path, {"stream_interval": 8, "speed": 5.0}), ("d", 0)) as (d,):
        played = await play(d, "decode", prompt(100), 50)
        assert played.tokens == right(prompt(100), 50)
        assert len(played.outputs) < 12
        assert played.outputs[0].tokens == 1


async def test_an_arrival_does_not_wait_for_steps_that_were_to_be_made_together(tmp_path: Path) -> None:
    async with engines(graph(tmp_path, {"stream_interval": 64}), ("d", 0)) as (d,):
        long = asyncio.create_task(play(d, "decode", prompt(100, 1), 80))
        await began(d, 1)
        await asyncio.sleep(0.05)  # 0.7 s of steps have begun
        late = time.monotonic()
        short = await play(d, "decode", prompt(16, 2), 1)
        assert short.times[0] - late < 0.4
        assert (await long).tokens == right(prompt(100, 1), 80)


async def test_a_refused_read_is_recomputed(tmp_path: Path) -> None:
    async with engines(graph(tmp_path, {"failures": {"refuse_reads": 1.0}}), ("p", 0), ("d", 0)) as (p, d):
        on_p = await play(p, "prefill", prompt(200), pin=True)
        on_d = await play(d, "decode", prompt(200), 5, source=on_p.last.params)
        assert on_d.last.kv is not None
        assert (on_d.last.kv.read_failed, on_d.last.kv.read_tokens) == (True, 0)
        assert on_d.tokens == right(prompt(200), 5)
        assert p.load().kv_used == 0, "the pin has ended all the same"


async def test_an_abort_does_not_cut_a_transfer(tmp_path: Path) -> None:
    async with engines(graph(tmp_path), ("p", 0), ("d", 0)) as (p, d):
        on_p = await play(p, "prefill", prompt(3000), pin=True)
        job = asyncio.create_task(play(d, "decode", prompt(3000), 5, id="gone", source=on_p.last.params))
        while not p.load().link_s:
            await asyncio.sleep(0)
        await d.abort("gone")
        assert (await job).last.output["finish_reason"] == "cancelled"
        assert p.load().kv_used == d.load().kv_used == 3008, "both sides keep their blocks: 320 ms are not over"
        while d.load().link_s:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        assert p.load().kv_used == d.load().kv_used == 0


async def test_a_reader_outlives_its_source(tmp_path: Path) -> None:
    async with engines(graph(tmp_path), ("p", 0), ("d", 0)) as (p, d):
        on_p = await play(p, "prefill", prompt(200), pin=True)
        await p.stop()
        on_d = await play(d, "decode", prompt(200), 5, source=on_p.last.params)
        assert on_d.last.kv is not None
        assert on_d.last.kv.read_failed
        assert on_d.tokens == right(prompt(200), 5)


async def test_an_engine_that_dies_fails_its_jobs_and_says_so(tmp_path: Path) -> None:
    failing = {"failures": {"die_after_jobs": 2, "replicas": [1]}}
    async with engines(graph(tmp_path, failing), ("d", 0), ("d", 1)) as (sound, dying):
        await play(dying, "decode", prompt(100))
        running = asyncio.create_task(play(dying, "decode", prompt(100, 1), 1000))
        await began(dying, 1)
        with pytest.raises(EngineDead):
            await play(dying, "decode", prompt(100, 2))
        with pytest.raises(EngineDead):
            await running
        await asyncio.wait_for(dying.wait_dead(), 1)
        assert len([await play(sound, "decode", prompt(100)) for _ in range(3)]) == 3


async def test_a_slow_engine_is_slow(tmp_path: Path) -> None:
    slow = {"speed": 10.0, "failures": {"slow_factor": 10.0, "replicas": [0]}}
    async with engines(graph(tmp_path, slow), ("p", 0), ("p", 1)) as (one, other):
        times = []
        for engine in (one, other):
            began_at = time.monotonic()
            await play(engine, "prefill", prompt(1000))
            times.append(time.monotonic() - began_at)
        assert times[0] >= 0.2
        assert times[1] < times[0]


async def test_a_pool_too_small_for_a_prompt_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"workers\[p\].sim.kv_tokens = 8192"):
        async with engines(graph(tmp_path, {"kv_tokens": 8192}), ("p", 0)):
            pass


def test_the_block_unused_for_longest_is_evicted_first() -> None:
    pool = BlockPool(4)
    for name in (b"a", b"b"):
        blocks = pool.allocate(2)
        for i, block in enumerate(blocks):
            pool.fill(block, name + bytes([i]), name)
        pool.drop(blocks)
    pool.take(used := pool.match([b"a\0", b"a\1"]))  # a is used again
    pool.drop(used)
    pool.allocate(1)
    assert [len(pool.match([name + b"\0", name + b"\1"])) for name in (b"a", b"b")] == [2, 1]
    assert (pool.used, pool.room, pool.allocated) == (1, 3, 5)
    with pytest.raises(MemoryError):
        pool.allocate(4)


def test_scaled_costs(tmp_path: Path) -> None:
    plain, quick = cost(tmp_path), ScaledCostModel(cost(tmp_path), 4.0)
    assert quick.t_pre(10, 100, 1) == plain.t_pre(10, 100, 1) / 4
    assert quick.t_dec(3, 100, 1) == plain.t_dec(3, 100, 1) / 4
    assert quick.t_mixed(3, 100, 50, 1) == plain.t_mixed(3, 100, 50, 1) / 4
    assert quick.t_kv(100, 1, 1, "history") == plain.t_kv(100, 1, 1, "history") / 4
