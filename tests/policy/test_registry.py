"""What holds for every policy."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, get_args

import pytest
from policy_cases import BOUND, COSTS, a_round, decide, decode, prefill

from ampd.config import Policy
from ampd.errors import WorkerGone
from ampd.policy.registry import make_policy
from ampd.policy.types import ClusterView, Decision, Reason, WorkerView

NAMES: list[str] = list(get_args(Policy.model_fields["name"].annotation))


def place(name: str, prefills: list[WorkerView], decodes: list[WorkerView], **options: Any) -> Decision:
    keys = {"prefix_decider": {"non_cached_tokens": 1}, "predictive": {"deflect": False}}
    return decide(Policy.model_validate({"name": name, **keys}), a_round(), prefills, decodes, **options)


def test_every_configurable_name_is_a_policy() -> None:
    assert len(NAMES) == 7
    for name in NAMES:
        assert place(name, [prefill(1)], [decode()]).reason in get_args(Reason)


def test_another_name_is_an_error() -> None:
    settings = SimpleNamespace(**{**dict(Policy()), "name": "best"})
    with pytest.raises(ValueError, match="policy.name = 'best' is no routing policy"):
        make_policy(settings)


@pytest.mark.parametrize("name", NAMES)
def test_overrides(name: str) -> None:
    busy, calm = [prefill(1, 9.0)], [decode()]
    forced = place(name, busy, calm, forced="remote")
    assert (forced.path, forced.worker, forced.reason) == ("remote", 1, "forced")
    local = place(name, [prefill(1)], [decode(queued_s=9.0)], forced="local")
    assert (local.path, local.worker, local.reason) == ("local", BOUND, "forced")
    nobody = place(name, [], calm, forced="remote")
    assert (nobody.path, nobody.reason) == ("local", "only_local")
    for path in (None, "local", "remote"):
        needs = place(name, [prefill(1)], [decode(queued_s=9.0)], forced=path, local_reason="prefill_failed")
        assert (needs.path, needs.reason) == ("local", "prefill_failed")


@pytest.mark.parametrize("name", NAMES)
def test_no_prefill_worker_that_can_take_it_means_local(name: str) -> None:
    for useless in ([], [prefill(1, draining=True)], [prefill(1, kv_total=2099)]):
        d = place(name, useless, [decode(queued_s=9.0)])
        assert (d.path, d.worker) == ("local", BOUND)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "local_only"])
def test_draining_and_too_small_workers_are_passed_over(name: str) -> None:
    workers = [prefill(1, draining=True), prefill(2, kv_total=2099), prefill(3, 0.5, kv_total=2100)]
    assert place(name, workers, [decode(queued_s=99.0)], forced="remote").worker == 3


@pytest.mark.parametrize("name", NAMES)
def test_a_draining_bound_worker_serves_its_sessions_and_a_missing_one_is_an_error(name: str) -> None:
    assert place(name, [], [decode(draining=True)]).worker == BOUND
    with pytest.raises(WorkerGone, match="decode worker 100 of session s is not live"):
        place(name, [prefill(1)], [decode(7)])


@pytest.mark.parametrize("name", NAMES)
def test_a_decision_can_be_explained(name: str) -> None:
    d = place(name, [prefill(1, 0.1), prefill(2, 0.2)], [decode(queued_s=0.3)])
    key = "local" if d.path == "local" else f"remote:{d.worker}"
    assert d.estimates[key] > d.estimate_s > 0


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_makes_the_same_decision(name: str) -> None:
    view = ClusterView([prefill(i, 0.1) for i in range(9)], [decode()])
    policy = make_policy(Policy.model_validate({"name": name}))
    first, again = (policy.route(a_round(), view, COSTS, Random(5)) for _ in range(2))
    assert (first.path, first.worker, first.reason) == (again.path, again.worker, again.reason)


def test_paper_takes_its_factors_from_the_settings() -> None:
    worker = prefill(1, ttft_s=1.5)
    assert decide(Policy(alpha=0.75), a_round(), [worker], [decode(itl_s=9.0)]).reason == "prefill_slack"
    assert decide(Policy(alpha=0.74), a_round(), [worker], [decode(itl_s=9.0)]).reason != "prefill_slack"
    assert decide(Policy(alpha=0.1, beta=0.8), a_round(), [worker], [decode(itl_s=0.08)]).reason == "decode_slack"
    assert decide(Policy(alpha=0.1, beta=0.7), a_round(), [worker], [decode(itl_s=0.08)]).reason != "decode_slack"


def test_predictive_forced_remote_may_deflect() -> None:
    d = decide(Policy(name="predictive"), a_round(), [], [decode(), decode(101)], forced="remote")
    assert (d.path, d.worker, d.reason) == ("remote", 101, "forced")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"policy": "prefill_load"}, "policy = 'prefill_load' needs policy.conditional_disagg.prefill_busy_threshold"),
        ({"policy": "isl_or_load"}, "policy = 'isl_or_load' needs policy.conditional_disagg.prefill_busy_threshold"),
        ({"policy": "best"}, "'isl_bounding', 'prefill_load' or 'isl_or_load'"),
        ({"eff_isl_ratio_threshold": 1.1}, "less than or equal to 1"),
    ],
)
def test_settings_that_dynamo_refuses_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Policy.model_validate({"conditional_disagg": keys})


def test_the_peers_defaults() -> None:
    policy = Policy()
    own = policy.conditional_disagg
    assert (own.policy, own.eff_isl_threshold, own.eff_isl_ratio_threshold) == ("isl_bounding", 2048, 0.7)
    assert (own.prefill_busy_threshold, own.decode_busy_threshold) == (None, None)
    assert (policy.ppd.bypass_threshold, policy.prefix_decider.non_cached_tokens, policy.prefix_decider.prompt_tokens) == (
        512,
        0,
        0,
    )
