"""Each peer's rule at its edge: one below, at it, and one above."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from policy_cases import BOUND, COSTS, a_round, decide, decode, prefill

from ampd.config import Policy
from ampd.policy.types import Decision, WorkerView


def place(name: str, *workers: WorkerView, keys: dict[str, Any] | None = None, seed: int = 0, **round: Any) -> Decision:
    settings = Policy.model_validate({"name": name, **({name: keys} if keys else {})})
    bound = [w for w in workers if w.role == "decode"] or [decode()]
    return decide(settings, a_round(**round), [w for w in workers if w.role == "prefill"], bound, seed)


def outcome(d: Decision) -> tuple[str, str]:
    return d.path, d.reason


def test_dynamo_is_always_remote() -> None:
    assert outcome(place("dynamo", prefill(1, 99.0), l_incr=1)) == ("remote", "always_remote")
    assert outcome(place("dynamo")) == ("local", "only_local")


def test_local_only_is_always_local() -> None:
    d = place("local_only", prefill(1), decode(queued_s=99.0), number=1, l_hist=0, l_incr=9000)
    assert (*outcome(d), d.worker) == ("local", "always_local", BOUND)


@pytest.mark.parametrize(
    ("number", "l_incr", "expected"),
    [
        (1, 1, ("remote", "first_round")),
        (2, 511, ("local", "short_increment")),
        (2, 512, ("remote", "long_increment")),
        (2, 513, ("remote", "long_increment")),
    ],
)
def test_ppd(number: int, l_incr: int, expected: tuple[str, str]) -> None:
    assert outcome(place("ppd", prefill(1), number=number, l_incr=l_incr)) == expected


def test_ppd_without_prefill_workers_and_with_its_key() -> None:
    assert outcome(place("ppd", number=1)) == ("local", "only_local")
    assert outcome(place("ppd", prefill(1), keys={"bypass_threshold": 100}, l_incr=100)) == ("remote", "long_increment")
    assert outcome(place("ppd", prefill(1), keys={"bypass_threshold": 101}, l_incr=100)) == ("local", "short_increment")


@pytest.mark.parametrize(
    ("threshold", "l_incr", "expected"),
    [
        (16, 15, ("local", "short_increment")),
        (16, 16, ("remote", "long_increment")),
        (16, 17, ("remote", "long_increment")),
        (0, 1, ("local", "short_increment")),  # llm-d: 0 disables disaggregation
        (0, 9000, ("local", "short_increment")),
        (1, 1, ("remote", "long_increment")),
    ],
)
def test_prefix_decider(threshold: int, l_incr: int, expected: tuple[str, str]) -> None:
    assert outcome(place("prefix_decider", prefill(1), keys={"non_cached_tokens": threshold}, l_incr=l_incr)) == expected


@pytest.mark.parametrize(
    ("prompt", "l_hist", "l_incr", "expected"),
    [
        (2000, 1899, 100, ("local", "short_increment")),
        (2000, 1900, 100, ("remote", "long_increment")),
        (2000, 1990, 10, ("local", "short_increment")),  # long enough a prompt, but held by the decode worker
        (2000, 0, 1999, ("local", "short_increment")),  # nothing is held of a short prompt
        (0, 0, 16, ("remote", "long_increment")),  # llm-d: 0 turns the guard off
    ],
)
def test_prefix_decider_keeps_short_prompts(prompt: int, l_hist: int, l_incr: int, expected: tuple[str, str]) -> None:
    keys = {"non_cached_tokens": 16, "prompt_tokens": prompt}
    assert outcome(place("prefix_decider", prefill(1), keys=keys, l_hist=l_hist, l_incr=l_incr)) == expected


def test_prefix_decider_without_a_threshold_ignores_the_prompts_length() -> None:
    keys = {"non_cached_tokens": 0, "prompt_tokens": 1}
    assert outcome(place("prefix_decider", prefill(1), keys=keys, l_incr=100)) == ("local", "short_increment")


def test_prefix_decider_is_off_by_default_as_llm_ds_is() -> None:
    assert outcome(place("prefix_decider", prefill(1), number=1, l_hist=0, l_incr=9000)) == ("local", "short_increment")


ISL = ("local", "isl_bounded")
NOT = ("remote", "not_bypassed")


@pytest.mark.parametrize(
    ("l_hist", "l_incr", "expected"),
    [
        (100_000, 2047, ISL),  # the number of new tokens, with a ratio far below
        (100_000, 2048, NOT),
        (100_000, 2049, NOT),
        (301, 699, ISL),  # the ratio, with few new tokens: 0.699
        (300, 700, NOT),  # 0.7
        (299, 701, NOT),
        (0, 1, NOT),  # nothing held: the ratio is 1
    ],
)
def test_isl_bounding_with_dynamos_defaults(l_hist: int, l_incr: int, expected: tuple[str, str]) -> None:
    d = place("conditional_disagg", prefill(1, 99.0), decode(kv_total=10**9), l_hist=l_hist, l_incr=l_incr)
    assert outcome(d) == expected


# A full step of 1,000 tokens takes 1 s: the busy line at a threshold of 2 is 2 s of queue.
LOAD = {"policy": "prefill_load", "prefill_busy_threshold": 2.0, "max_num_batched_tokens": 1000}


@pytest.mark.parametrize(("queued_s", "expected"), [(1.999, NOT), (2.0, NOT), (2.001, ("local", "prefill_busy"))])
def test_prefill_load(queued_s: float, expected: tuple[str, str]) -> None:
    assert outcome(place("conditional_disagg", prefill(1, queued_s), prefill(2, 9.0), keys=LOAD)) == expected


@pytest.mark.parametrize(
    ("l_incr", "queued_s", "expected"),
    [(100, 0.0, ISL), (100, 3.0, ISL), (3000, 0.0, NOT), (3000, 3.0, ("local", "prefill_busy"))],
)
def test_isl_or_load_is_either(l_incr: int, queued_s: float, expected: tuple[str, str]) -> None:
    d = place("conditional_disagg", prefill(1, queued_s), keys={**LOAD, "policy": "isl_or_load"}, l_incr=l_incr)
    assert outcome(d) == expected


@pytest.mark.parametrize(
    ("context", "expected"), [(2899, ISL), (2900, ISL), (2901, ("remote", "decode_busy"))]
)  # with the prompt of 2,100 tokens: 4,999, 5,000 and 5,001 of 10,000
def test_the_decode_guard(context: int, expected: tuple[str, str]) -> None:
    keys = {"decode_busy_threshold": 0.5}
    assert outcome(place("conditional_disagg", prefill(1), decode(kv_total=10_000, context=context), keys=keys)) == expected


def test_a_decode_worker_of_unknown_size_counts_as_busy_and_without_the_guard_as_calm() -> None:
    unknown = decode(kv_total=0)
    assert place("conditional_disagg", prefill(1), unknown, keys={"decode_busy_threshold": 0.5}).reason == "decode_busy"
    assert place("conditional_disagg", prefill(1), unknown).reason == "isl_bounded"


def test_conditional_disagg_without_prefill_workers() -> None:
    assert outcome(place("conditional_disagg", l_incr=9000)) == ("local", "only_local")


def test_remote_prefills_go_where_the_least_prefill_waits_the_workers_own_caches_counted() -> None:
    # The whole prompt takes 2.1 s; after 2,000 held tokens 0.3 s.
    workers = [prefill(1, 0.5), prefill(2, 2.2), prefill(3, 1.0)]
    assert place("dynamo", *workers).worker == 1
    d = place("dynamo", *workers, held={2: 2000})
    assert d.worker == 2
    assert d.estimates == pytest.approx({"remote:1": 2.6, "remote:2": 2.5, "remote:3": 3.1})
    assert d.estimate_s == pytest.approx(COSTS.t_pre(2000, 100, 1))


def test_equal_prefill_workers_share_the_load() -> None:
    picks = Counter(place("dynamo", prefill(1), prefill(2), prefill(3, 1.0), seed=s).worker for s in range(1000))
    assert set(picks) == {1, 2}
    assert 400 < picks[1] < 600
