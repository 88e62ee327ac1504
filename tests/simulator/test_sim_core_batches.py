"""Batches: steps that are passed over are the steps that would have been made; percentiles of gaps; memory."""

from __future__ import annotations

from array import array
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from sim_core_costs import HandCosts, agents, chat, setup, single

from ampd.simulator.cluster.batch import Batch
from ampd.simulator.cluster.gaps import Gaps
from ampd.simulator.cluster.job import Job, Session
from ampd.simulator.cluster.times import Steps
from ampd.simulator.simulate import assemble, simulate
from ampd.simulator.types import TraceSession

COSTS = HandCosts(history_s=1e-8, context_s=1e-6, moved_s=1e-5)


@pytest.mark.parametrize("local_prefill", ["slack", "chunked", "exclusive"])
@pytest.mark.parametrize("kv", [1_000_000, 9_000])
def test_passing_over_steps_changes_nothing(local_prefill: str, kv: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = agents(60, rate=1.0, seed=4)
    here = setup(1, 2, kv=kv, policy={"name": "predictive", "local_prefill": local_prefill})
    fast = simulate(here, COSTS, sessions)
    leave = Batch.until_leave
    monkeypatch.setattr(Batch, "until_leave", lambda batch: min(1, leave(batch)))
    slow = simulate(here, COSTS, sessions)
    assert slow.counts["events"] > 1.2 * fast.counts["events"]
    assert len(fast.records) == len(slow.records) == sum(len(s.rounds) for s in sessions)
    by_round = [np.lexsort((r.number, r.session)) for r in (fast.records, slow.records)]
    for name in ("ttft_s", "itl_s", "itl_p95_s", "ended_s", "path", "worker", "l_hist", "held"):
        one, other = (getattr(r, name)[order] for r, order in zip((fast.records, slow.records), by_round, strict=True))
        np.testing.assert_allclose(one, other, rtol=1e-6, err_msg=name)


def test_events_grow_with_rounds_not_with_tokens() -> None:
    def events(output: int) -> int:
        sessions = [single(100, output, 10.0 * i, f"s{i}") for i in range(20)]
        return simulate(setup(1, 1, policy="dynamo"), COSTS, sessions).counts["events"]

    assert events(4000) < events(40) + 20 * 200  # of 80,000 steps; reports go on while a batch runs


def test_steps_in_closed_form() -> None:
    rng = Random(5)
    for _ in range(300):
        steps = Steps(rng.randint(1, 500), rng.uniform(0.001, 0.1), rng.choice([0.0, 1e-9, 1e-5, 0.003]))
        each = np.cumsum(steps.first_s + steps.more_s * np.arange(steps.count))
        count = rng.randint(1, steps.count)
        assert steps.lasts_s(count) == pytest.approx(each[count - 1])
        at = rng.uniform(0, 1.1 * each[-1])
        assert steps.over_after(at) == int((each <= at).sum())


def test_percentiles_of_gaps_are_numpys() -> None:
    rng, out = Random(6), array("d", bytes(8 * 400))
    gaps, steps, expected = Gaps(out), [], {}
    for row in range(400):
        for _ in range(rng.randint(1, 3)):
            count, first, more = rng.randint(1, 40), rng.uniform(0.01, 0.2), rng.choice([0.0, 1e-4])
            gaps.ran(count, first, more)
            steps += [first + i * more for i in range(count)]
        count = rng.randint(1, min(60, len(steps)))
        begin = rng.randint(max(0, len(steps) - 100), len(steps) - count)
        expected[row] = np.percentile(steps[begin : begin + count], 95)
        if row % 10:
            gaps.ended(row, begin, count)
        else:
            gaps.ended_in_parts(row, [(begin, count)], [0.5, 0.6])
            expected[row] = np.percentile([*steps[begin : begin + count], 0.5, 0.6], 95)
        if row % 90 == 89:
            gaps.work_off(len(steps) - 100)
    gaps.work_off(len(steps))
    assert list(out) == pytest.approx([expected[row] for row in range(400)])


def test_blocks_of_a_growing_batch() -> None:
    """Against counting each sequence's blocks after each step."""
    rng, size = Random(7), 16
    batch = Batch(size)
    lengths: dict[int, int] = {}
    for i in range(40):
        session = Session(i, single(10, 1, 0.0))
        prompt, output = rng.randint(1, 100), rng.randint(1, 50)
        batch.join(Job(session, prompt, output, 0.0), prompt, output - 1 if output > 1 else 1)
        lengths[i] = prompt
        steps = min(batch.until_leave(), rng.randint(1, 20))

        def blocks(more: int, lengths: dict[int, int] = lengths) -> int:
            return sum((kv + more) // size + 1 for kv in lengths.values())

        assert [batch.growth(n) for n in range(1, steps + 1)] == [blocks(n) - blocks(0) for n in range(1, steps + 1)]
        for room in (0, 1, 3, blocks(steps) - blocks(0)):
            most = max(n for n in range(steps + 1) if blocks(n) - blocks(0) <= room)
            assert batch.steps_within(room, steps) == most
        batch.advance(steps)
        lengths = {i: kv + steps for i, kv in lengths.items()}
        for job in batch.leavers():
            batch.remove(job)
            del lengths[job.index]
    assert batch.context == sum(lengths.values())


def test_preemption_computes_again_and_every_round_ends() -> None:
    """Two sequences of 1,000 tokens do not fit together into 1,500: the later one is put off, and its pause is one long gap."""
    cost = HandCosts(token_s=0.001)
    sessions = [single(200, 800, 0.0, "first"), single(200, 800, 0.0, "second")]
    outcome = simulate(setup(0, 1, kv=1504, policy={"name": "local_only", "local_prefill": "chunked"}), cost, sessions)
    assert outcome.counts["preemptions"] == 1
    first, second = outcome.records.session.argsort()
    assert outcome.records.ended_s[first] < outcome.records.ended_s[second]
    assert outcome.records.itl_s[first] == pytest.approx(0.0117, rel=0.05)
    assert outcome.records.itl_s[second] > 1.3 * outcome.records.itl_s[first]
    assert outcome.records.itl_p95_s[second] == pytest.approx(0.012, rel=0.01)  # one gap of 799 is beyond the percentile


def test_kv_pools_return_to_their_base_level() -> None:
    sessions = agents(150, rate=2.0, seed=8)
    for fields in ({"kv": 12_000}, {"kv": 12_000, "retention": "cache"}, {"kv": 12_000, "retention": "ttl"}, {}):
        world, rounds = assemble(setup(2, 2, **fields), COSTS, sessions)
        world.loop.run()
        assert len(world.book) == sum(len(s.rounds) for s in sessions)
        assert not rounds.open
        assert [(w.pool.used, len(w.pins), w.pins.tokens, len(w.queue)) for w in world.workers] == [(0, 0, 0, 0)] * 4
        assert all(w.pool.cached <= w.pool.total for w in world.workers)


def test_a_prefill_workers_cache_forgets_the_least_recently_used_session() -> None:
    """The prompts of two sessions fit into the prefill worker's pool, those of three do not."""

    def held(others: int) -> int:
        sessions: list[TraceSession] = [chat("a", 0.0, [960, 32], 1, gap_s=10.0)]
        sessions += [single(960, 1, 1.0 + i, f"other-{i}") for i in range(others)]
        records = simulate(setup(1, 1, kv=2016, policy="dynamo"), COSTS, sessions).records
        return int(records.held[(records.session == 0) & (records.number == 2)][0])

    assert (held(1), held(3)) == (960, 0)


def test_slack_keeps_the_mean_itl_of_running_rounds_within_target_and_chunks_do_not() -> None:
    """Of answers as long as expected: the policy spends what a round can still make up (ampd/policy/chunks.py)."""
    cost = HandCosts(token_s=0.0002)
    drawn = agents(80, rate=1.5, seed=9, new=600)
    sessions = [replace(s, rounds=tuple(replace(r, output=60) for r in s.rounds)) for s in drawn]

    def over(local_prefill: str) -> float:
        policy = {"name": "local_only", "local_prefill": local_prefill}
        records = simulate(setup(0, 2, policy=policy, itl_s=0.03), cost, sessions).records
        return float((records.itl_s > 0.03).mean())

    assert over("slack") == 0.0
    assert over("chunked") > 0.1
