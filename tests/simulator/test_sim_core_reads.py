"""Lazy reads of histories: what a round waits for, one look-ahead, and what is safe while it is read. All reckoned by hand."""

from __future__ import annotations

import pytest
from sim_core_costs import HandCosts, chat, setup, single

from ampd.simulator.simulate import simulate
from ampd.simulator.types import Outcome, TraceRound, TraceSession

LOCAL_THEN_REMOTE = {"name": "dynamo", "force": ["local", "remote"], "local_prefill": "chunked"}


def ttft(outcome: Outcome, session: int, number: int) -> float:
    records = outcome.records
    return float(records.ttft_s[(records.session == session) & (records.number == number)][0])


def test_a_remote_round_reads_computes_and_brings_back() -> None:
    """Of 736 tokens the decode worker keeps 671, 640 of them in whole blocks; the prefill worker computes 96 and sends them."""
    cost = HandCosts(moved_s=1e-4)
    outcome = simulate(setup(1, 1, policy=LOCAL_THEN_REMOTE), cost, [chat("a", 0.0, [640, 64], 32)])
    assert ttft(outcome, 0, 2) == pytest.approx(640e-4 + 0.096 + 96e-4 + 0.011)
    assert outcome.records.moved_s[1] == pytest.approx(736e-4)


def test_what_the_prefill_worker_holds_is_not_read_and_without_reads_it_is_all_that_counts() -> None:
    cost = HandCosts(moved_s=1e-4)
    sessions = [chat("a", 0.0, [640, 64], 32)]

    def second(history: str) -> float:
        return ttft(simulate(setup(1, 1, policy="dynamo", prefill_history=history), cost, sessions), 0, 2)

    assert second("read") == second("cache") == pytest.approx(0.096 + 96e-4 + 0.011)
    assert second("none") == pytest.approx(0.736 + 96e-4 + 0.011)


def test_the_next_history_is_read_while_a_prompt_computes_and_not_while_one_is_read() -> None:
    """Reads of 320 ms, prompts of 128 ms: three rounds that come together end at 448, 768 and 1,088 ms."""
    cost = HandCosts(moved_s=1e-3, back_s=0.0, step_s=1e-9, sequence_s=0.0)
    sessions = [chat(f"s{i}", 10.0 * i, [320, 96], 32, gap_s=100.0 - 10.0 * i) for i in range(3)]
    outcome = simulate(setup(1, 3, policy=LOCAL_THEN_REMOTE), cost, sessions)
    assert [ttft(outcome, i, 2) for i in range(3)] == pytest.approx([0.448, 0.768, 1.088], abs=1e-3)


def test_a_history_that_is_being_read_is_not_given_up() -> None:
    """While 640 tokens are read for 6.4 s, a new session that needs their room waits."""
    cost = HandCosts(moved_s=1e-2)
    sessions = [chat("a", 0.0, [640, 64], 32, gap_s=1.0), single(600, 2, 4.0, "b")]
    outcome = simulate(setup(1, 1, kv=1024, policy=LOCAL_THEN_REMOTE), cost, sessions)
    read_over = float(outcome.records.arrived_s[(outcome.records.session == 0) & (outcome.records.number == 2)][0]) + 6.4
    assert ttft(outcome, 1, 1) == pytest.approx(read_over - 4.0 + 0.6)
    assert outcome.counts["shed_pins"] == 0


def test_a_history_that_was_given_up_is_computed_again() -> None:
    sessions = [chat("a", 0.0, [640, 64], 32, gap_s=5.0), single(900, 2, 2.0, "b")]
    outcome = simulate(setup(1, 1, kv=1024, policy=LOCAL_THEN_REMOTE), HandCosts(), sessions)
    assert outcome.counts["shed_pins"] == outcome.counts["history_lost"] == 1
    assert ttft(outcome, 0, 2) == pytest.approx(0.736 + 0.011)


def test_a_rewritten_history_is_shorter_everywhere() -> None:

    rounds = (TraceRound(640, 0, 32), TraceRound(736, 320, 32, 1.0))
    records = simulate(setup(1, 1, policy="dynamo"), HandCosts(), [TraceSession("a", rounds)]).records
    assert (records.held[1], records.l_hist[1]) == (320, 320)
    assert records.ttft_s[1] == pytest.approx(0.416 + 0.011)


def test_a_session_that_was_idle_too_long_has_no_history() -> None:
    sessions = [chat("a", 0.0, [640, 64], 32, gap_s=20.0), single(10, 1, 40.0, "last")]

    def reused(idle_ttl_s: float) -> list[int]:
        return simulate(setup(0, 1, policy="local_only", idle_ttl_s=idle_ttl_s), HandCosts(), sessions).records.l_hist.tolist()

    assert reused(30.0) == [0, 640, 0]
    assert reused(10.0)[1] == 640  # the prefix cache still has it, though nobody counts on that
