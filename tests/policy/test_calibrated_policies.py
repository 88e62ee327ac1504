"""What policies make of the factors that workers have measured: every T of a worker is multiplied by its own."""

from __future__ import annotations

from typing import Any

import pytest
from policy_cases import BOUND, COSTS, a_round, decide, decode, prefill

from ampd.config import Policy
from ampd.policy.binding import choose_decode, rebind
from ampd.policy.types import ClusterView, WorkerView

# A round of 2,000 tokens of history and 100 new ones: T_pre 0.3 s, history read 0.02 s, increment back 0.003 s, a step with it.
T_PRE, READ, BACK = 0.3, 0.02, 0.003
ALL = ["paper", "predictive", "dynamo", "conditional_disagg", "ppd", "prefix_decider"]


def policy(name: str, **keys: Any) -> Policy:
    return Policy.model_validate({"name": name, **keys})


def slow(factor: float = 3.0) -> dict[str, float]:
    return {f"t_{fn}_factor": factor for fn in ("pre", "dec", "mixed", "kv")}


def test_predictive_multiplies_each_term_by_the_factor_of_who_measured_it() -> None:
    p = prefill(1, 0.5, link_s=0.04, t_pre_factor=2.0, t_kv_factor=3.0)
    d = decode(queued_s=9.0, running=3, context=6000, t_dec_factor=1.5, t_kv_factor=0.5, t_pre_factor=4.0)
    made = decide(policy("predictive"), a_round(), [p], [d])
    step = 1.5 * (0.01 * 4 + 0.000001 * (6000 + 2100))
    assert made.estimates["remote:1"] == pytest.approx(0.5 + 0.04 + 3 * READ + 2 * T_PRE + 0.5 * BACK + 1.5 * step)
    assert made.estimate_s == pytest.approx(2 * T_PRE), "what the queue is charged"
    beside = 1.5 * (0.03 + 0.006)
    more = 0.036 + 0.1 - beside + 4 * (T_PRE - 0.1)  # of a step, and attention to the history
    assert made.estimates["local"] == pytest.approx(0.5 * beside + more * (1 + 9 / (4 * T_PRE)) * 0.09 / (0.09 - beside))


def test_predictive_deflects_by_the_other_workers_factors() -> None:
    w = decode(7, running=1, context=1000, t_pre_factor=0.5, t_dec_factor=2.0, t_kv_factor=1.5)
    made = decide(policy("predictive"), a_round(), [], [decode(queued_s=9.0), w])
    own = 1.5 * READ + 0.5 * T_PRE + BACK + (0.01 + 0.0021)
    stretch = 0.09 / (0.09 - 2 * (0.01 + 0.001))
    assert made.estimates["remote:7"] == pytest.approx(own + 0.5 * T_PRE * (stretch - 1))
    assert made.reason == "deflect"


@pytest.mark.parametrize(("t_mixed_factor", "mixed"), [(1.0, 0.111), (2.0, 0.222), (0.25, 0.022 + 0.25 * 0.1)])
def test_a_chunk_always_adds_to_a_step(t_mixed_factor: float, mixed: float) -> None:
    """Whatever the factors of T_mixed and T_dec are: else a local prefill would take for ever."""
    d = decode(running=1, context=1000, t_dec_factor=2.0, t_mixed_factor=t_mixed_factor)
    made = decide(policy("predictive", local_prefill="chunked"), a_round(), [prefill(1)], [d])
    assert made.estimates["local.itl"] == pytest.approx(mixed)
    assert made.estimates["local"] == pytest.approx(T_PRE * mixed / (mixed - 0.022))


def test_paper_multiplies_equations_1_and_2() -> None:
    p, d = prefill(1, 3.0, t_pre_factor=2.0, t_kv_factor=3.0), decode(queued_s=9.0, itl_s=1.0, t_pre_factor=1.5, t_kv_factor=0.5)
    made = decide(policy("paper"), a_round(), [p], [d])
    assert made.estimates["remote:1"] == pytest.approx(3 + 2 * T_PRE + 3 * READ + 0.5 * BACK)
    assert made.estimates["local"] == pytest.approx(9 + 1.5 * T_PRE)
    assert made.reason == "cost_remote"


def test_papers_empty_itl_window_is_the_calibrated_step() -> None:
    """T_dec of the batch is 50 ms, within 85 ms; twice that is not."""
    for factor, reason in ((1.0, "decode_slack"), (2.0, "cost_local")):
        d = decode(running=5, t_dec_factor=factor)
        assert decide(policy("paper"), a_round(), [prefill(1, 5.0)], [d]).reason == reason


@pytest.mark.parametrize("name", ALL)
def test_every_policy_prefers_the_worker_that_is_not_slow(name: str) -> None:
    """Both have the same queue, and the profile says the same of both."""
    slow_one, other = prefill(1, 0.1, **slow()), prefill(2, 0.1)
    for seed in range(10):
        made = decide(policy(name), a_round(), [slow_one, other], [decode(queued_s=9.0)], seed, forced="remote")
        assert (made.worker, made.estimate_s) == (2, pytest.approx(T_PRE))


@pytest.mark.parametrize("name", [*ALL, "local_only"])
def test_every_policy_charges_the_queue_what_the_slow_worker_will_take(name: str) -> None:
    everywhere: list[WorkerView] = [decode(**slow())]
    assert decide(policy(name), a_round(), [], everywhere, forced="local").estimate_s == pytest.approx(3 * T_PRE)
    if name != "local_only":
        assert decide(policy(name), a_round(), [prefill(1, **slow())], everywhere, forced="remote").estimate_s == pytest.approx(
            3 * T_PRE
        )


def test_a_slow_worker_is_busy_later_in_its_own_seconds() -> None:
    """2 s of prefill are queued: more than a full step of the profile's, less than one of a worker at a third of the speed."""
    keys = {"policy": "prefill_load", "prefill_busy_threshold": 1.0, "max_num_batched_tokens": 1000}
    for factor, reason in ((1.0, "prefill_busy"), (3.0, "not_bypassed")):
        made = decide(
            policy("conditional_disagg", conditional_disagg=keys), a_round(), [prefill(1, 2.0, **slow(factor))], [decode()]
        )
        assert made.reason == reason


def test_sessions_are_bound_away_from_a_slow_decode_worker_and_leave_it() -> None:
    even = ClusterView([], [decode(BOUND, running=8, context=8000), decode(7, running=8, context=8000)])
    assert choose_decode(even, 1000, "predicted_load", COSTS).id == 7, "the lowest id of equals"
    assert rebind(a_round(), even, COSTS, "when_cheaper") is None
    assert (
        choose_decode(
            ClusterView([], [even.decode[0], decode(7, running=8, context=8000, **slow())]), 1000, "predicted_load", COSTS
        ).id
        == BOUND
    )
    view = ClusterView([], [decode(BOUND, running=8, context=8000, **slow()), even.decode[1]])
    moved = rebind(a_round(), view, COSTS, "when_cheaper")
    assert moved is not None
    assert moved.worker.id == 7
    assert moved.cost_s == pytest.approx(2.1 - 0.3), "at the other worker's speed"


def test_a_move_is_priced_by_the_factors_of_both_workers() -> None:
    view = ClusterView([], [decode(running=8, context=8000, t_pre_factor=2.0, t_dec_factor=3.0), decode(7, t_pre_factor=0.5)])
    moved = rebind(a_round(), view, COSTS, "when_cheaper", steps=100)
    assert moved is not None
    assert moved.cost_s == pytest.approx(0.5 * (2.1 - T_PRE))
    stays, leaves = 2 * T_PRE + 100 * 3 * (0.09 + 0.0101), 0.5 * T_PRE + 100 * (0.01 + 0.0021)
    assert moved.gain_s == pytest.approx(stays - leaves)


def test_a_baselines_wait_on_a_worker_that_holds_the_prompt_has_its_factor() -> None:
    p = prefill(1, 0.5, t_pre_factor=3.0)
    made = decide(policy("dynamo"), a_round(held={1: 2000}), [p, prefill(2)], [decode()])
    assert made.estimates["remote:1"] == pytest.approx(0.5 + 3 * T_PRE)
