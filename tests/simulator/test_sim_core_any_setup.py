"""Whatever the setup and the sessions: every round ends, once, in possible times, and no KV is left in use."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from sim_core_costs import HandCosts

from ampd.simulator.cluster.decode import DecodeWorker
from ampd.simulator.forms import COLOCATED, FORMS, setup_for
from ampd.simulator.simulate import assemble
from ampd.simulator.types import Group, Setup, TraceRound, TraceSession

MOST_TOKENS = 2500


def any_setup(rng: Random) -> Setup:
    """Pools that hold one to twenty of the longest rounds; prefill workers may be too small for some."""
    form, kv = rng.choice(FORMS), rng.choice([2600, 4000, 8000, 50_000])
    groups = [Group("decode", 1, rng.randint(1, 3), kv, rng.choice([64, 512]), rng.choice([2, 8, 256]))]
    if form not in COLOCATED:
        groups.append(Group("prefill", 1, rng.randint(1, 3), rng.choice([1500, kv]), 512, rng.choice([2, 256])))
    made = setup_for(
        form, groups, 1.0, rng.choice([0.02, 0.1]), coordinators=rng.randint(1, 3), block_size=rng.choice([16, 32]),
        batched_tokens=rng.choice([64, 2048]),
    )  # fmt: skip
    keys = {
        "local_prefill": rng.choice(["slack", "chunked", "exclusive"]),
        "rebind": rng.choice(["never", "when_cheaper"]),
        "binding": rng.choice(["kv_room", "predicted_load"]),
    }
    return replace(
        made,
        policy=made.policy.model_copy(update=keys),
        local_slots=rng.choice([1, 2, 8]),
        prefill_tokens=rng.choice([0, 64, 2048]),
        prefill_history=rng.choice(["read", "cache", "none"]),
        retention=rng.choice(["pin", "cache", "ttl"]),
        admission=rng.choice(["arrival", "program"]),
        idle_ttl_s=rng.choice([1.0, 300.0]),
    )


def any_session(rng: Random, name: str, at: float) -> TraceSession:
    """Short and long answers, rewritten histories, rounds that follow at once."""
    rounds, context = [], 0
    for number in range(rng.randint(1, 5)):
        history = context if rng.random() < 0.8 else rng.randint(0, context)
        prompt, output = history + rng.randint(1, 500), rng.choice([1, 1, 2, 30, 300])
        if prompt + output > MOST_TOKENS:
            break
        rounds.append(TraceRound(prompt, history, output, rng.choice([0.0, 0.5, 3.0]) if number else 0.0, rng.choice("ab")))
        context = prompt + output
    return TraceSession(name, tuple(rounds), at)


@pytest.mark.parametrize("seed", range(40))
def test_every_round_ends_and_leaves_nothing(seed: int) -> None:
    rng = Random(seed)
    here, at, sessions = any_setup(rng), 0.0, []
    for i in range(30):
        at += rng.expovariate(rng.choice([1, 10]))
        sessions.append(any_session(rng, f"s{i}", at))
    cost = HandCosts(history_s=1e-8, context_s=1e-6, moved_s=rng.choice([0, 1e-5, 1e-3]))
    world, rounds = assemble(here, cost, sessions, seed)
    world.loop.run(1e5)
    assert not rounds.open
    records = world.book.records()
    served = sorted(zip(records.session.tolist(), records.number.tolist(), strict=True))
    assert served == [(i, n + 1) for i, s in enumerate(sessions) for n in range(len(s.rounds))]
    for worker in world.workers:
        assert (worker.pool.used, len(worker.pins), worker.pins.tokens, worker.pins.free) == (0, 0, 0, 0)
        assert sum(e.blocks for e in worker.pool.entries.values()) == worker.pool.cached <= worker.pool.total
        if isinstance(worker, DecodeWorker):
            worker.work_off()
    long = records.output > 1
    assert (records.ttft_s > 0.01 * (records.path != 0)).all()
    assert (records.itl_s[long] > 0.0109).all()
    assert (np.array(world.book.itl_p95_s)[long] > 0.0109).all()
    assert np.isnan(np.array(world.book.itl_p95_s)[~long]).all()
