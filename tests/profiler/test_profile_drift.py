"""Which points `ampd profile check` takes again, and what it says of the times that come out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sample_profile import make_profile, true_t_pre

from ampd.cost_model import Profile
from ampd.profiler.curves import curves
from ampd.profiler.drift import curve_of, drifts, pick
from ampd.profiler.grid import Limits, choose_spots
from ampd.profiler.spots import Spot

ONE = {"prefill": 1, "decode": 1}
CANDIDATES = choose_spots(Limits(32, 8192, 512, 50_000, 50_000), quick=False)


@pytest.fixture(scope="module")
def profile() -> Profile:
    return make_profile()


def test_points_of_the_profile_are_taken_again_from_quick_to_slow(profile: Profile) -> None:
    picked = pick(curves(profile), CANDIDATES, ONE, 3)
    of = {kind: [e for e in picked if e.spot.kind == kind] for kind in ("prefill", "decode", "mixed", "history", "increment")}
    assert {kind: len(some) for kind, some in of.items()} == dict.fromkeys(of, 3)
    assert all(e.stored for e in (*of["prefill"], *of["history"], *of["increment"]))
    known = {(p.l_hist, p.l_incr): p.seconds for p in profile.points.prefill}
    assert [e.seconds for e in of["prefill"]] == sorted(known[e.spot.args] for e in of["prefill"])


def test_where_the_profile_has_no_point_its_fit_is_the_measure(profile: Profile) -> None:
    # No decode measurement has exactly the contexts of the sample profile.
    picked = [e for e in pick(curves(profile), CANDIDATES, ONE, 3) if e.spot.kind == "decode"]
    assert [e.stored for e in picked] == [False] * 3
    cost, fit = profile.cost_model(), profile.t_dec[0]
    for expected in picked:
        batch, context = expected.spot.point
        assert expected.seconds == cost.t_dec(batch, context, 1)
        assert fit.batch[0] <= batch <= fit.batch[1]
        assert fit.context[0] <= context <= fit.context[1]


def test_each_direction_is_compared_with_its_own_pair_of_thetas(profile: Profile) -> None:
    both = [*curves(profile), *curves(make_profile(theta=2))]
    assert getattr(curve_of(both, "prefill", {"prefill": 2, "decode": 1}), "theta", None) == "2"
    assert getattr(curve_of(both, "decode", {"prefill": 2, "decode": 1}), "theta", None) == "1"
    assert curve_of(both, "history", {"prefill": 2, "decode": 1}) is None  # 1->2 was not measured
    assert getattr(curve_of(both, "increment", {"prefill": 2, "decode": 2}), "theta", None) == "2->2"


def test_of_several_transports_the_usual_one_is_meant(profile: Profile) -> None:
    both = [replace(c, transport=by) for by in ("nvlink", "rdma") for c in curves(profile)]
    assert getattr(curve_of(both, "history", ONE, "rdma"), "transport", None) == "rdma"
    assert getattr(curve_of(both, "history", ONE), "transport", None) == "nvlink"


@pytest.mark.parametrize(("factor", "drifted"), [(1.0, False), (1.24, False), (1.26, True), (1 / 1.24, False), (1 / 1.26, True)])
def test_drift_is_a_factor_beyond_the_bound_either_way(profile: Profile, factor: float, drifted: bool) -> None:
    picked = pick(curves(profile), CANDIDATES, ONE, 3)
    # One sample of three is wild: it decides nothing. The decode engine's times are as they were.
    measured = {e.spot: [e.seconds * (factor if e.spot.kind == "prefill" else 1)] * 2 + [e.seconds * 9] for e in picked}
    found, missing = drifts(picked, measured, 0.25)
    assert missing == []
    assert [(d.curve.title, d.drifted) for d in found] == [
        ("T_pre", drifted), ("T_dec", False), ("T_mixed", False), ("T_kv history", False), ("T_kv increment", False),
    ]  # fmt: skip
    assert found[0].as_json()["ratio"] == pytest.approx(factor)


def test_a_point_without_samples_is_named(profile: Profile) -> None:
    picked = pick(curves(profile), CANDIDATES, ONE, 1)
    found, missing = drifts(picked, {Spot("prefill", picked[0].spot.args): [true_t_pre(*picked[0].spot.args)]}, 0.25)
    assert [d.curve.name for d in found] == ["T_pre"]
    assert missing == [e.spot.name for e in picked[1:]]
