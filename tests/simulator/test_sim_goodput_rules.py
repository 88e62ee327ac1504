"""Targets, feasible deployments, candidates and the upper bound."""

from __future__ import annotations

import itertools
import math

import pytest

from ampd.bench.traces import generate
from ampd.cost_model import PiecewiseCostModel, Profile, load_profile
from ampd.cost_model.arrays import ArrayCostModel
from ampd.cost_model.functions import DecodeFit, FitError, MixedFit, PrefillFit, Segment
from ampd.errors import ConfigError
from ampd.simulator.experiments.bound import ALLOWANCE, bound_rate
from ampd.simulator.experiments.candidates import Fluid
from ampd.simulator.experiments.deployments import (
    Deployment,
    Side,
    enumerate_deployments,
    feasible_thetas,
    longest_context,
    parse_deployment,
)
from ampd.simulator.experiments.load import load_of
from ampd.simulator.experiments.targets import LEVELS, MULTIPLES, derive_targets
from ampd.simulator.types import TraceRound, TraceSession
from tests.simulator.sim_core_costs import HandCosts

H200 = "configs/profiles/llama-3.1-70b-h200.json"
ERROR = FitError(heldout_median=0.0, heldout_p95=0.0, points=1)


def sessions(*rounds: tuple[int, int, int]) -> list[TraceSession]:
    """One session each of one round: (prompt, history, output)."""
    return [TraceSession(f"s{i}", (TraceRound(*r),)) for i, r in enumerate(rounds)]


def fits(prefill_start: float, prefill_token: float, decode_start: float, decode_sequence: float) -> PiecewiseCostModel:
    """Lines, for theta 1; a mixed step costs a start and each of its parts."""
    span = (1, 4096)
    return PiecewiseCostModel(
        [PrefillFit(1, prefill_start, 0.0, [Segment(None, prefill_token)], span, span, ERROR)],
        [DecodeFit(1, decode_start, 0.0, [Segment(None, decode_sequence)], span, span, ERROR)],
        [],
        [MixedFit(1, prefill_start, decode_sequence, 0.0, [Segment(None, prefill_token)], span, span, span, ERROR)],
    )


# ---- targets


def test_targets_are_multiples_of_the_p90_unloaded_ttft_and_of_the_batch_8_itl() -> None:
    # Increments of 100, 200, ... 1100 tokens at 1 ms: the 90th percentile is 1.0 s. T_dec of 8: 10 + 8 ms.
    load = sessions(*((100 * n, 0, 10) for n in range(1, 12)))
    for level in LEVELS:
        targets = derive_targets(load, HandCosts(), [1, 2, 4], level)
        of_ttft, of_itl = MULTIPLES[level]
        assert targets.unloaded_ttft_s == pytest.approx(1.0)
        assert targets.ttft_s == pytest.approx(of_ttft * 1.0)
        assert targets.batch_itl_s == pytest.approx(0.018)
        assert targets.itl_s == pytest.approx(of_itl * 0.018)
        assert targets.theta == 4


def test_targets_count_increments_and_decoded_context_and_grow_with_the_level() -> None:
    # The history costs nothing by itself, but 1 us for each pair; context is weighed by the tokens that attend to it.
    cost = HandCosts(history_s=1e-6, context_s=1e-6)
    targets = derive_targets(sessions((1000, 900, 100), (100, 0, 300)), cost, [1])
    assert targets.unloaded_ttft_s == pytest.approx(0.1 + 0.9 * (100 * (1e-3 + 9e-4) - 0.1))  # numpy's quantile of two
    context = (100 * (1000 + 50) + 300 * (100 + 150)) / 400
    assert targets.batch_itl_s == pytest.approx(0.018 + 8e-6 * context)
    found = [derive_targets(sessions((1000, 0, 10)), cost, [1], level) for level in LEVELS]
    assert [t.ttft_s for t in found] == sorted({t.ttft_s for t in found})
    assert [t.itl_s for t in found] == sorted({t.itl_s for t in found})


def test_targets_are_refused_without_a_load_or_a_degree() -> None:
    with pytest.raises(ConfigError, match="no feasible tensor-parallel degree"):
        derive_targets(sessions((10, 0, 1)), HandCosts(), [])
    with pytest.raises(ConfigError, match="'strict' is unknown; choose tight, middle, loose"):
        derive_targets(sessions((10, 0, 1)), HandCosts(), [1], "strict")  # type: ignore[arg-type]


# ---- deployments


@pytest.mark.parametrize("text", ["P:<TP=2,DP=3> D:<TP=4,DP=2>", "D:<TP=8,DP=1>"])
def test_the_papers_form_is_read_and_written(text: str) -> None:
    assert str(parse_deployment(text)) == text
    assert parse_deployment(text).gpus == (14 if text.startswith("P") else 8)


@pytest.mark.parametrize("text", ["", "P:<TP=2,DP=3>", "D:<TP=0,DP=1>", "D:<TP=4,DP=2> P:<TP=2,DP=3>", "D:<TP=4>"])
def test_another_form_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not of the form"):
        parse_deployment(text)


def test_all_deployments_of_a_node_are_found() -> None:
    found = enumerate_deployments([2, 4, 8], 8)
    every = {
        f"P:<TP={p},DP={n}> D:<TP={d},DP={m}>"
        for p, n, d, m in itertools.product((2, 4, 8), (1, 2, 3, 4), (2, 4, 8), (1, 2, 3, 4))
        if p * n + d * m == 8
    }
    assert {str(d) for d in found} == every | {"D:<TP=2,DP=4>", "D:<TP=4,DP=2>", "D:<TP=8,DP=1>"}
    assert len(found) == len(set(map(str, found)))


def test_gpus_are_left_idle_only_where_they_must_be() -> None:
    assert {d.gpus for d in enumerate_deployments([2, 4], 7)} == {6}
    with pytest.raises(ConfigError, match="gpus: 1 cannot hold the model: the least TP is 2"):
        enumerate_deployments([2, 4], 1)
    with pytest.raises(ConfigError, match="no TP within a node holds the model"):
        enumerate_deployments([], 8)


def test_a_degree_is_feasible_up_to_the_last_token_that_its_pool_holds() -> None:
    profile = load_profile(H200)
    pool = profile.meta.kv_capacity_by_theta["2"]
    assert list(feasible_thetas(profile, pool)) == [2, 4, 8]
    assert list(feasible_thetas(profile, pool + 1)) == [4, 8]
    assert list(feasible_thetas(profile, 100, gpus=4)) == [2, 4]
    assert feasible_thetas(profile, 10**9) == {}
    assert longest_context(sessions((100, 0, 7), (90, 0, 20))) == 110


def test_groups_have_the_profiles_pools_and_a_model_that_does_not_fit_is_named() -> None:
    capacity = feasible_thetas(load_profile(H200), 8192)
    prefill, decode = Deployment(Side(2, 3), Side(4, 1)).groups(capacity)
    assert (prefill.role, prefill.theta, prefill.replicas, prefill.kv_tokens) == ("prefill", 2, 3, capacity[2])
    assert (decode.role, decode.theta, decode.replicas, decode.kv_tokens) == ("decode", 4, 1, capacity[4])
    with pytest.raises(ConfigError, match=r"a decode worker of TP=1 does not hold the model by this profile; use TP of 2, 4, 8"):
        Deployment(None, Side(1, 8)).groups(capacity)


# ---- candidates


def fluid(profile: Profile, ttft_s: float, itl_s: float) -> Fluid:
    load = load_of(generate("dureader", 200, 1))
    return Fluid(load, ArrayCostModel(profile.cost_model()), feasible_thetas(profile, 8192), ttft_s, itl_s)


def test_candidates_suit_the_kind_of_policy_and_come_best_first() -> None:
    estimate = fluid(load_profile(H200), 0.3, 0.03)
    every = enumerate_deployments([2, 4, 8], 16)
    for kind in ("anywhere", "remote", "recompute", "colocated"):
        best = estimate.best(every, kind, 5)
        rates = [estimate.rate(d, kind) for d in best]
        assert min(rates) > 0
        assert max(rates) == max(estimate.rate(d, kind) for d in every)
        assert len(set(best)) == len(best) == (3 if kind == "colocated" else 5)
        if kind == "anywhere":
            assert 1 <= sum(d.prefill is None for d in best) <= 3
        else:
            assert rates == sorted(rates, reverse=True)
            assert all((d.prefill is None) == (kind == "colocated") for d in best)


def test_candidates_that_miss_the_targets_even_when_idle_are_left_out() -> None:
    # TP 2 takes 22 ms for a step; no degree prefills within a millisecond.
    profile, every = load_profile(H200), enumerate_deployments([2, 4, 8], 8)
    assert {d.decode.theta for d in fluid(profile, 0.3, 0.02).best(every, "colocated", 9)} == {4, 8}
    assert fluid(profile, 0.001, 0.03).best(every, "colocated", 9) == []


# ---- the bound


def test_the_bound_of_prefills_alone_is_their_least_price() -> None:
    # One token of output needs no decode step. The most tokens share a step's start of 8 ms: 1 ms / token + 8 ms / 8192.
    rate = bound_rate(load_of(sessions(*[(500, 0, 1)] * 10)), fits(0.008, 0.001, 0.01, 1e-4), {1: 100_000}, 4, 0.05)
    assert rate == pytest.approx(ALLOWANCE * 4 / (500 * (0.001 + 0.008 / 8192)), rel=0.02)
    assert rate >= 4 / (500 * (0.001 + 0.008 / 8192))


def test_the_bound_of_decoding_is_the_largest_batch_within_the_target_but_for_the_rounds_that_may_miss() -> None:
    # Steps of 10 ms + 0.1 ms a sequence: within 20 ms a batch of 100, a token every 0.2 ms; rounds that miss share a batch of 256.
    load = load_of(sessions(*[(1, 0, 1001)] * 100))
    rate = bound_rate(load, fits(0.0, 1e-9, 0.01, 1e-4), {1: 10_000_000}, 1, 0.02)
    attained, missed = 0.02 / 100, (0.01 + 256e-4) / 256
    exact = 1 / (1000 * (0.9 * attained + 0.1 * missed))
    assert exact <= rate <= 1.06 * exact


def test_the_bound_falls_with_the_kv_pool_and_the_target_and_grows_with_the_gpus() -> None:
    profile = load_profile(H200)
    cost, load, capacity = profile.cost_model(), load_of(generate("gaia", 100, 1)), feasible_thetas(profile, 32_768)
    rate = bound_rate(load, cost, capacity, 32, 0.03)
    assert bound_rate(load, cost, capacity, 64, 0.03) == pytest.approx(2 * rate)
    assert bound_rate(load, cost, capacity, 32, 0.015) < rate
    assert bound_rate(load, cost, dict.fromkeys(capacity, 40_000), 32, 0.03) < rate
    assert math.isfinite(rate)
