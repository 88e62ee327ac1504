"""`predictive`: what it predicts, worked out by hand, and what it chooses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_cases import BOUND, a_round, decide, decode, prefill

from ampd.config import Policy
from ampd.policy.types import Decision, WorkerView

# A round of 2,000 tokens of history and 100 new ones: T_pre 0.3 s, history read 0.02 s, increment back 0.003 s.
T_PRE, READ, BACK = 0.3, 0.02, 0.003


def policy(**keys: Any) -> Policy:
    return Policy.model_validate({"name": "predictive", **keys})


def place(*workers: WorkerView, keys: dict[str, Any] | None = None, seed: int = 0, **round: Any) -> Decision:
    prefills = [w for w in workers if w.role == "prefill"]
    return decide(policy(**(keys or {})), a_round(**round), prefills, [w for w in workers if w.role == "decode"], seed)


def test_remote_is_queue_link_history_prefill_increment_and_the_first_step() -> None:
    d = place(prefill(1, 0.5, link_s=0.04), prefill(2, 0.1), decode(queued_s=9.0, running=3, context=6000, link_s=0.01))
    step = 0.01 * 4 + 0.000001 * (6000 + 2100)
    joins = 1.5 * step  # half of one for the end of the step under way
    assert d.estimates["remote:1"] == pytest.approx(0.5 + 0.04 + READ + T_PRE + BACK + joins)
    assert d.estimates["remote:2"] == pytest.approx(0.1 + 0.01 + READ + T_PRE + BACK + joins)
    assert (d.path, d.worker, d.reason) == ("remote", 2, "least_finish")
    assert d.estimate_s == pytest.approx(T_PRE)


def test_a_busy_link_counts() -> None:
    assert place(prefill(1, 0.2), prefill(2, 0.1, link_s=0.5), decode(queued_s=9)).worker == 1


@pytest.mark.parametrize(
    ("held", "read", "computed"),
    [
        (500, 1500 * 1e-5, T_PRE),  # part of the history: only the rest is read, the increment is computed
        (2000, 0.0, T_PRE),  # all of the history: nothing is read
        (2080, 0.0, 0.02 + 0.208),  # part of the increment too: that much less is computed
        (2100, 0.0, 0.001 + 0.2099),  # the whole prompt: the last token is computed all the same
    ],
)
def test_what_a_prefill_worker_holds_is_neither_read_nor_computed(held: int, read: float, computed: float) -> None:
    d = place(prefill(1, 0.001), prefill(2), decode(queued_s=9), held={1: held}, keys={"predictive": {"near": 0}})
    step = 0.01 + 0.0021
    assert d.estimates["remote:1"] == pytest.approx(0.001 + read + computed + BACK + step)
    assert d.worker == 1
    assert d.estimate_s == pytest.approx(computed)


def test_a_shorter_queue_outweighs_a_cache() -> None:
    assert place(prefill(1, 1.0), prefill(2, 0.2), decode(queued_s=9), held={1: 2000}).worker == 2


def test_a_decode_worker_that_holds_the_prompt_computes_less() -> None:
    d = place(decode(queued_s=9.0), decode(7), decode(8), held={7: 2090})
    assert (d.worker, d.reason) == (7, "deflect")
    assert d.estimate_s == pytest.approx(0.01 + 0.209)


def test_local_beside_no_batch_takes_its_own_time() -> None:
    d = place(decode(queued_s=0.1), keys={"predictive": {"deflect": False}})
    assert d.estimates == pytest.approx({"local": 0.1 + T_PRE, "local.itl": 0.0, "local.stall": 0.0})
    assert (d.path, d.worker, d.reason) == ("local", BOUND, "only_local")


def test_a_local_prefill_gets_what_the_itl_target_leaves() -> None:
    """Margin 0.9 of 0.1 s and a step of 0.045 s leave half of the time; half a step is waited for before."""
    d = place(prefill(1, 9.0), decode(queued_s=0.1, running=4, context=5000))
    assert d.estimates["local"] == pytest.approx(0.0225 + (0.1 + T_PRE) * 2)
    assert d.estimates["local.itl"] == pytest.approx(0.09)
    assert d.estimates["local.stall"] == pytest.approx(2 * T_PRE)
    assert (d.path, d.reason) == ("local", "least_finish")


def test_a_short_local_prefill_takes_a_step_of_the_batch_and_what_is_more() -> None:
    """A step of 0.021 s and 0.05 s for 50 tokens; those that wait, 0.02 s by themselves, share it."""
    d = place(prefill(1, 9.0), decode(queued_s=0.02, running=2, context=1000), l_hist=0, l_incr=50)
    assert d.estimates["local"] == pytest.approx(0.0105 + 0.021 + 0.05 + 0.02)
    assert d.estimates["local.stall"] == pytest.approx(2 * 0.05)


def test_what_does_not_fit_into_the_longest_step_takes_several() -> None:
    """Three targets of 0.09 s are the longest step. Of each step of 0.09 s 0.069 s are left."""
    fits, takes = (
        place(prefill(1, 9.0), decode(running=2, context=1000), l_hist=0, l_incr=tokens).estimates["local"] for tokens in (249, 251)
    )
    assert fits == pytest.approx(0.0105 + 0.021 + 0.249)
    assert takes == pytest.approx(0.0105 + 0.251 * 0.09 / 0.069)


def test_without_slack_a_local_prefill_crawls_and_is_chosen_only_when_others_are_worse() -> None:
    busy = decode(running=8, context=0)  # a step of 0.08 s: a quarter more is 0.1 s, over 0.09 s
    d = place(prefill(1, 1.0), busy)
    assert d.estimates["local"] == pytest.approx(0.04 + T_PRE * 5)
    assert d.estimates["local.itl"] == pytest.approx(0.1)
    assert (d.worker, d.reason) == (1, "least_finish")
    assert place(prefill(1, 9.0), busy).reason == "least_violation"


def test_a_chunked_local_prefill_makes_steps_longer_and_is_charged_for_it() -> None:
    d = place(prefill(1, 0.25), decode(running=2), keys={"local_prefill": "chunked"}, itl_target_s=0.2)
    assert d.estimates["local.itl"] == pytest.approx(0.02 + 0.1)
    assert d.estimates["local"] == pytest.approx(T_PRE * 0.12 / 0.1)
    assert d.estimates["local.stall"] == pytest.approx(T_PRE)
    # Local would finish first, at 0.36 s against 0.61 s, but it also stops two rounds for 0.3 s.
    assert d.estimates["local"] < d.estimates["remote:1"] < d.estimates["local"] + T_PRE
    assert d.worker == 1


def test_an_exclusive_local_prefill_pauses_the_batch() -> None:
    d = place(prefill(1, 1.0), decode(running=2), keys={"local_prefill": "exclusive"})
    assert d.estimates["local"] == pytest.approx(T_PRE)
    assert d.estimates["local.itl"] == pytest.approx(0.02 + T_PRE)
    assert d.worker == 1  # the pause misses the ITL target


def test_a_long_prompt_in_chunks_of_the_workers_size() -> None:
    d = place(prefill(1), decode(running=1), keys={"local_prefill": "chunked"}, l_incr=4000)
    assert d.estimates["local.itl"] == pytest.approx(0.01 + 0.512)


def test_windows_decide_nothing_but_near_equals() -> None:
    assert place(prefill(1, 0.5, ttft_s=0.0), prefill(2, 0.1, ttft_s=99.0), decode(queued_s=9)).worker == 2
    slow = [prefill(1, 0.1, ttft_s=3.0), prefill(2, 0.1, ttft_s=1.0), prefill(3, 0.1)]
    assert {place(*slow, decode(queued_s=9), seed=s).worker for s in range(60)} == {2, 3}


def test_equals_are_picked_about_equally_often() -> None:
    workers = [prefill(i, 0.1, ttft_s=1.0) for i in range(8)]
    picks = Counter(place(*workers, decode(queued_s=9), seed=s).worker for s in range(4000))
    assert set(picks) == set(range(8))
    assert all(400 < n < 600 for n in picks.values())


def test_near_is_a_share_of_the_best() -> None:
    workers = [prefill(1), prefill(2, 0.016), prefill(3, 0.018)]  # predicted 0.335 s, and 0.352 s is within 5 % of it
    assert {place(*workers, decode(queued_s=9), seed=s).worker for s in range(60)} == {1, 2}


def test_candidates_over_a_target_are_no_near_equals() -> None:
    """1.8 s is the limit: 1.79 s is in, 1.81 s is out though within 5 %."""
    own = READ + T_PRE + BACK + 0.01 + 0.0021
    workers = [prefill(1, 1.79 - own), prefill(2, 1.81 - own)]
    assert {place(*workers, decode(queued_s=9), seed=s).worker for s in range(40)} == {1}


def test_per_request_targets_decide() -> None:
    workers = (prefill(1, 1.0), decode(running=4, queued_s=0.1, context=5000))  # local: 0.8 s, remote: 1.4 s
    assert place(*workers).path == "local"
    assert place(*workers, itl_target_s=0.06).path == "remote"  # 0.054 s leave a step of 0.045 s less than a quarter
    assert place(*workers, itl_target_s=0.06, ttft_target_s=1.0).reason == "least_violation"


def test_the_least_violation_is_of_the_worse_target() -> None:
    local = decode(running=10)  # ITL 0.125 s: 1.39 times 0.09 s; finish 1.5 s
    assert place(prefill(1, 1.8), local).worker == 1  # 2.24 s: 1.24 times 1.8 s
    assert place(prefill(1, 2.6), local).worker == BOUND


@pytest.mark.parametrize(("priority", "limit_s"), [(1, 2.0), (0, 1.8), (-1, 1.62)])
def test_priorities_set_how_much_of_a_target_may_be_used(priority: int, limit_s: float) -> None:
    own = READ + T_PRE + BACK + 0.01 + 0.0021
    for queued, reason in ((limit_s - own - 0.001, "least_finish"), (limit_s - own + 0.001, "least_violation")):
        assert place(prefill(1, queued), decode(queued_s=9), priority=priority).reason == reason


def test_another_decode_worker_with_slack_prefills_when_it_finishes_first() -> None:
    bound, idle = decode(queued_s=5.0), decode(101)
    d = place(prefill(1, 1.0), bound, idle)
    assert (d.path, d.worker, d.reason) == ("remote", 101, "deflect")
    assert d.estimates["remote:101"] == pytest.approx(READ + T_PRE + BACK + 0.01 + 0.0021)
    assert place(prefill(1, 1.0), bound, idle, keys={"predictive": {"deflect": False}}).worker == 1


def test_a_deflected_prefill_is_stretched_by_the_batch_there() -> None:
    d = place(prefill(1, 9.0), decode(queued_s=5.0), decode(101, 0.1, running=4, context=5000))
    assert d.estimates["remote:101"] == pytest.approx((0.1 + T_PRE) * 2 + READ + BACK + 0.01 + 0.0021)
    assert d.worker == 101


@pytest.mark.parametrize(
    "other",
    [
        decode(101, running=8),  # no slack
        decode(101, kv_free=2000),  # no room
        decode(101, kv_free=900_000, kv_promised=898_000),
        decode(101, draining=True),
        decode(101, 2.0),  # a long queue
    ],
)
def test_a_decode_worker_that_cannot_help_is_not_asked(other: WorkerView) -> None:
    assert place(prefill(1, 1.0), decode(queued_s=5.0), other).worker == 1


def test_slack_ends_where_the_context_makes_a_step_too_long() -> None:
    """0.09 s / 1.25 = 0.072 s: one sequence with 62,000 tokens."""
    others = [
        decode(101, running=1, context=61_999),
        decode(102, running=1, context=62_010),
        decode(103, running=2, context=52_001),
    ]
    d = place(prefill(1, 9.0), decode(queued_s=9.0), *others)
    assert (d.worker, d.reason) == (101, "deflect")
    assert {k for k in d.estimates if k.startswith("remote:10")} == {"remote:101"}


def test_an_idle_decode_worker_has_slack_whatever_the_target() -> None:
    d = place(decode(queued_s=5.0), decode(101), itl_target_s=0.005)
    assert (d.worker, d.reason) == (101, "deflect")


def test_near_equal_decode_workers_share_deflected_prefills() -> None:
    others = [decode(101), decode(102, 0.016), decode(103, 0.018)]
    assert {place(decode(queued_s=5.0), *others, seed=s).worker for s in range(60)} == {101, 102}


def test_a_graph_without_prefill_workers() -> None:
    d = place(decode(running=4, context=5000), decode(101, 3.0))
    assert (d.path, d.reason) == ("local", "least_finish")
    assert place(decode(queued_s=5.0), decode(101)).reason == "deflect"
    assert place(decode(queued_s=5.0)).reason == "only_local"
    assert place(decode(queued_s=50.0), decode(101, 30.0)).worker == 101


def test_estimates_name_every_candidate() -> None:
    d = place(prefill(1), prefill(2, 5.0), prefill(3, draining=True), decode(), decode(101, 3.0), decode(102, running=9))
    assert list(d.estimates) == ["local", "local.itl", "local.stall", "remote:1", "remote:2", "remote:101"]
    assert len(d.estimates) == 6
    assert repr(d.estimates).startswith("{'local': 0.3")


worker_fields = {
    "queued_s": st.sampled_from([0.0, 0.1, 1.0, 5.0]),
    "link_s": st.sampled_from([0.0, 0.3]),
    "ttft_s": st.none() | st.sampled_from([0.0, 1.0, 50.0]),
    "draining": st.booleans(),
    "kv_total": st.sampled_from([1000, 100_000]),
    "theta": st.sampled_from([1, 2]),
}
prefill_workers = st.lists(st.fixed_dictionaries(worker_fields), max_size=6)
decode_fields = {
    **worker_fields,
    "running": st.integers(0, 12),
    "context": st.sampled_from([0, 20_000]),
    "kv_free": st.sampled_from([0, 50_000]),
}
decode_workers = st.lists(st.fixed_dictionaries(decode_fields), min_size=1, max_size=6)
rounds = st.fixed_dictionaries(
    {
        "l_hist": st.sampled_from([0, 1500]),
        "l_incr": st.sampled_from([1, 300]),
        "ttft_target_s": st.sampled_from([0.2, 2.0]),
        "itl_target_s": st.sampled_from([0.05, 0.2]),
        "held": st.dictionaries(st.integers(0, 5), st.sampled_from([64, 1700]), max_size=3),
        "priority": st.integers(-1, 1),
    }
)


@given(prefill_workers, decode_workers, rounds, st.sampled_from(["slack", "chunked", "exclusive"]), st.integers(0, 9))
@settings(max_examples=200, deadline=None)
def test_whatever_the_cluster_looks_like(
    prefills: list[dict[str, Any]], decodes: list[dict[str, Any]], round: dict[str, Any], mode: str, seed: int
) -> None:
    workers = [prefill(i, **f) for i, f in enumerate(prefills)] + [decode(BOUND + i, **f) for i, f in enumerate(decodes)]
    by_id = {w.id: w for w in workers}
    tokens = round["l_hist"] + round["l_incr"]
    d = place(*workers, keys={"local_prefill": mode}, seed=seed, **round)
    chosen = by_id[d.worker]
    assert (d.path == "local") == (d.worker == BOUND)
    if d.path == "remote":
        assert not chosen.draining
        assert chosen.kv_total >= tokens or chosen.role == "decode"
        assert chosen.role == "prefill" or chosen.kv_free >= tokens
    factor = {1: 1.0, 0: 0.9, -1: 0.81}[round["priority"]]
    limit, itl_limit = factor * round["ttft_target_s"], factor * round["itl_target_s"]
    others = {k: s for k, s in d.estimates.items() if k.startswith("remote:")}
    local = d.estimates["local"] + d.estimates["local.stall"]
    local_meets = d.estimates["local"] <= limit and d.estimates["local.itl"] <= itl_limit
    meeting = [s for s in others.values() if s <= limit] + ([local] if local_meets else [])
    score = local if d.path == "local" else others[f"remote:{d.worker}"]
    if d.reason == "only_local":
        assert others == {}
        assert len(decodes) == 1
    elif meeting:
        assert d.reason in ("least_finish", "deflect")
        assert score in meeting
        assert score <= min(meeting) * 1.05 + 1e-12
    else:
        assert d.reason == "least_violation"
        local_misses = max(d.estimates["local"] / limit, d.estimates["local.itl"] / itl_limit)
        misses = local_misses if d.path == "local" else score / limit
        assert misses <= min([local_misses, *(s / limit for s in others.values())]) * 1.05 + 1e-12
