"""Continuum's times to live, and the caches that they are compared with."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np
import pytest
from sim_core_costs import HandCosts, chat, setup, single

from ampd.simulator.cluster.ttl import TimesToLive
from ampd.simulator.simulate import simulate
from ampd.simulator.types import Setup, TraceSession


def learned(rule: str, times: list[float], lengths: list[int], waits: list[float]) -> TimesToLive:
    lives = TimesToLive("paper" if rule == "paper" else "released")
    for seconds in times:
        lives.ran("search", seconds)
    for rounds in lengths:
        lives.ended(rounds)
    for seconds in waits:
        lives.admitted(seconds)
    return lives


def test_tau_is_the_best_of_all_that_could_be_chosen() -> None:
    rng = Random(1)
    times = [rng.expovariate(1.0) for _ in range(100)]
    lengths = [rng.randint(2, 12) for _ in range(50)]
    lives = learned("paper", times, lengths, [0.5, 1.5])
    done = [k for n in lengths for k in range(1, n + 1)]
    to_come = [n - k for n in lengths for k in range(1, n + 1)]
    assert lives.eta == pytest.approx(-np.corrcoef(done, to_come)[0, 1])
    for reload_s in (0.1, 0.5, 2.0, 50.0):
        gain = 1.0 * lives.eta + reload_s

        def value(tau: float, gain: float = gain) -> float:
            return sum(t <= tau for t in times) / len(times) * gain - tau

        grid = np.linspace(0, max(times), 5000)
        tau = lives.of("search", reload_s)
        assert value(tau) >= max(value(float(t)) for t in grid) - 1e-9
    assert lives.of("search", 1e-3) < lives.of("search", 50.0)


def test_a_tool_is_judged_by_all_tools_until_it_has_a_hundred_samples() -> None:
    lives = learned("paper", [0.1] * 99, [], [])
    lives.ran("build", 30.0)
    assert lives.of("build", 10.0) == 0.1
    for _ in range(99):
        lives.ran("build", 30.0)
    assert lives.of("build", 10.0) == 0.0  # not worth 30 s
    assert lives.of("build", 40.0) == 30.0


def test_the_released_rule_is_two_seconds_or_nothing() -> None:
    lives = learned("released", [1.0, 2.0], [], [])
    lives.ran("build", 1.0)
    assert (lives.of("search", 9.0), lives.of("unseen", 9.0), lives.of("build", 9.0)) == (2.0, 2.0, 2.0)
    lives.ran("build", 9.0)
    assert lives.of("build", 9.0) == 0.0


def reused(here: Setup, gap_s: float) -> int:
    """Tokens of a session's first round that are left for its second, with other sessions in between that would fill the pool."""
    between = [single(640, 20, 1.0 + 0.5 * i, f"other-{i}") for i in range(10)]
    sessions: list[TraceSession] = sorted([chat("a", 0.0, [640, 64], 33, gap_s), *between], key=lambda s: s.arrives_s)
    records = simulate(here, HandCosts(token_s=1e-4), sessions).records
    return int(records.l_hist[(records.session == 0) & (records.number == 2)][0])


def test_a_time_to_live_keeps_what_a_cache_would_evict() -> None:
    colocated = {"prefill": 0, "kv": 2048, "policy": {"name": "local_only", "reorder": {"name": "fcfs"}}, "batched_tokens": 2048}
    assert reused(setup(**colocated, retention="cache"), gap_s=1.9) < 672
    assert reused(setup(**colocated, retention="ttl", admission="program"), gap_s=1.9) == 672
    assert reused(setup(**colocated, retention="ttl", admission="program"), gap_s=5.6) < 672


def test_what_is_kept_for_a_time_is_not_given_up_while_others_run() -> None:
    """Of 64 blocks 21 are kept until 2.4 s, and up to 20 run for 4 s: a prompt of 35 has to wait for the 21, one of 19 has not."""
    kept = {"admission": "program", "retention": "ttl"}

    def waited(prompt: int) -> float:
        sessions = [chat("kept", 0.0, [640, 64], 32, gap_s=50.0), single(250, 360, 0.5, "runs"), single(prompt, 1, 1.0, "comes")]
        here = setup(0, 1, kv=2048, policy="local_only", batched_tokens=2048, **kept)
        records = simulate(here, HandCosts(token_s=1e-6), sessions).records
        return float(records.ttft_s[records.session == 2][0])

    assert waited(600) < 0.1
    assert 1.3 < waited(1100) < 4.0


def test_the_program_that_arrived_first_is_admitted_first() -> None:
    """Three sessions' later rounds wait behind a long one: Continuum takes the oldest session's, vLLM the oldest round."""
    sessions = [
        chat("old", 0.0, [100, 100], 2, gap_s=3.0),
        chat("young", 0.5, [100, 100], 2, gap_s=2.3),
        single(100, 400, 1.0, "long"),
    ]

    def order(admission: str) -> list[int]:
        here = setup(0, 1, policy="local_only", batched_tokens=512, retention="cache", admission=admission, most=1)
        records = simulate(here, HandCosts(), sessions).records
        return [int(s) for s, n in zip(records.session, records.number, strict=True) if n == 2]

    assert order("arrival") == [1, 0]
    assert order("program") == [0, 1]


def test_a_prefill_worker_of_vllms_computes_several_prompts_in_a_step() -> None:
    """Four prompts of 100 tokens, 50 ms a step and 1 ms a token: one after the other, or the last three together."""
    sessions = [single(100, 1, 0.001 * i, f"s{i}") for i in range(4)]
    cost = HandCosts(prefill_s=0.05, step_s=1e-9, sequence_s=0.0)

    def last(tokens: int) -> float:
        here = setup(1, 1, policy="dynamo", prefill_tokens=tokens)
        return float(simulate(here, cost, sessions).records.ended_s.max())

    assert last(0) == pytest.approx(4 * 0.15)
    assert last(8192) == pytest.approx(0.15 + 0.35)
    assert last(150) == pytest.approx(0.15 + 0.2 + 0.2)  # of the last three, half of the second waits for the next step


def test_a_decode_worker_packs_short_prefills_into_one_step_unless_the_batch_pauses() -> None:
    """Prompts of 60 and 20 tokens arrive together beside a running round; a step has room for about 80."""
    sessions = [single(10, 400, 0.0, "runs"), single(60, 1, 1.0, "a"), single(20, 1, 1.0, "b")]

    def apart(mode: str) -> float:
        here = setup(0, 1, policy={"name": "local_only", "local_prefill": mode}, chunk=90, itl_s=0.1)
        records = simulate(here, HandCosts(sequence_s=0.0), sessions).records
        return float(records.ttft_s[records.session == 2][0] - records.ttft_s[records.session == 1][0])

    assert apart("slack") == apart("chunked") == 0.0
    assert apart("exclusive") >= 0.02


def test_a_colocated_engine_shares_a_step_among_prefills() -> None:
    """Four prompts of 100 tokens in a budget of 256: three begin in the first step, the third and the fourth end in the second."""
    sessions = [single(100, 1, 0.0, f"s{i}") for i in range(4)]
    here = setup(0, 1, policy="local_only", batched_tokens=256)
    records = simulate(here, HandCosts(), sessions).records
    first, *_, last = sorted(records.ttft_s.tolist())
    assert first == pytest.approx(0.1)  # the first arrival finds an idle engine, and the others wait for its step
    assert last == pytest.approx(0.4)
    assert [b - a for a, b in pairwise(sorted(records.ttft_s.tolist()))] == pytest.approx([0.256, 0.0, 0.044])
