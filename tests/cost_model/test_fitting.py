"""Fits recover known functions, survive outliers, and state an honest error."""

from __future__ import annotations

import numpy as np
import pytest

from ampd.cost_model import DecodePoint, KvPoint, Meta, Points, PrefillPoint
from ampd.cost_model.fitting import fit_profile, fit_t_dec, fit_t_kv, fit_t_pre
from ampd.cost_model.nnls import nnls
from ampd.cost_model.piecewise import PiecewiseCostModel
from ampd.errors import ProfileError

HISTORY = (0, 512, 2048, 8192)
INCREMENT = (1, 16, 64, 128, 256, 512, 1024, 2048, 4096)
META = Meta(
    model="m",
    engine="vllm",
    engine_version="1",
    device="cpu",
    block_size=32,
    kv_bytes_per_token=64,
    kv_capacity_tokens=1,
    created="2026-01-01",
)


def true_t_pre(l_hist: int, l_incr: int) -> float:
    """Slower a token beyond 512 new ones, attention over everything, some work a history token."""
    return 0.008 + 2e-7 * l_hist + 1e-4 * l_incr + 8e-5 * max(0, l_incr - 512) + 2e-8 * l_incr * (l_hist + l_incr / 2)


def prefill_points(noise: float = 0.0, theta: int = 1) -> list[PrefillPoint]:
    rng = np.random.default_rng(3)
    return [
        PrefillPoint(h, i, true_t_pre(h, i) / theta * float(rng.lognormal(0, noise)), theta)
        for h in HISTORY
        for i in INCREMENT
        for _ in range(2)
    ]


def model_of(points: list[PrefillPoint]):  # type: ignore[no-untyped-def]
    decode = [DecodePoint(b, 256 * b, 0.01 + 0.001 * b, 1) for b in (1, 2, 4, 8)]
    return fit_profile(META, Points(points, decode, [])).cost_model()


def test_an_exact_function_is_recovered_everywhere() -> None:
    fit = fit_t_pre(prefill_points())
    assert [s.up_to for s in fit.segments] == [512, None]
    assert fit.error.heldout_p95 < 1e-3
    model = model_of(prefill_points())
    for h in (0, 100, 5000):
        for i in (1, 300, 512, 513, 3000):
            assert model.t_pre(h, i, 1) == pytest.approx(true_t_pre(h, i), rel=1e-3)


def test_the_stated_error_is_that_of_unseen_points() -> None:
    fit = fit_t_pre(prefill_points(noise=0.1))
    # A lognormal of sigma 0.1 has a median absolute deviation of 6.7 % and a 95th percentile near 20 %.
    assert 0.04 < fit.error.heldout_median < 0.11
    assert 0.12 < fit.error.heldout_p95 < 0.35
    assert fit.error.points == len(HISTORY) * len(INCREMENT) * 2


def test_with_few_points_the_stated_error_is_worse_than_the_error_at_the_fitted_points() -> None:
    rng = np.random.default_rng(1)
    points = [KvPoint(n, "history", (0.004 + 3e-6 * n) * float(rng.lognormal(0, 0.3))) for n in (256, 512, 1024, 2048, 4096, 8192)]
    fit = fit_t_kv(points)
    model = PiecewiseCostModel([], [], [fit])
    fitted = np.median([abs(model.t_kv(p.tokens, 1, 1, "history") / p.seconds - 1) for p in points])
    assert fit.error.heldout_median > 1.3 * fitted


def test_outliers_do_not_bend_the_fit() -> None:
    points = prefill_points(noise=0.01)
    stalled = [PrefillPoint(p.l_hist, p.l_incr, p.seconds * (2.0 if n % 5 == 1 else 1.0)) for n, p in enumerate(points)]
    model = model_of(stalled)
    errors = [abs(model.t_pre(h, i, 1) / true_t_pre(h, i) - 1) for h in HISTORY for i in INCREMENT]
    assert np.median(errors) < 0.02
    assert max(errors) < 0.03


def test_coefficients_never_turn_negative_and_no_function_falls() -> None:
    rng = np.random.default_rng(5)
    points = [PrefillPoint(h, i, float(rng.uniform(0.9, 1.1)) * (1.0 - 0.0001 * i)) for h in HISTORY for i in INCREMENT]
    fit = fit_t_pre(points)
    assert min(fit.start_s, fit.history_token_s, *(s.each_s for s in fit.segments), *(s.pair_s for s in fit.segments)) >= 0
    model = model_of(prefill_points(noise=0.3))
    for h in (0, 1000):
        times = [model.t_pre(h, i, 1) for i in range(1, 6000, 7)]
        assert times == sorted(times)


def test_decode_and_transfer_fits() -> None:
    decode = [
        DecodePoint(b, b * c, 0.01 + 0.002 * min(b, 8) + 0.0005 * max(0, b - 8) + 1e-6 * b * c)
        for b in (1, 2, 4, 8, 12, 16)
        for c in (64, 4096)
    ]
    fit = fit_t_dec(decode)
    assert [s.up_to for s in fit.segments] == [8, None]
    assert (fit.batch, fit.context) == ((1, 16), (64, 16 * 4096))
    assert fit.context_token_s == pytest.approx(1e-6, rel=1e-3)
    kv = fit_t_kv([KvPoint(n, "history", 0.004 + 3e-6 * n) for n in (512, 1024, 4096, 8192)])
    assert (kv.direction, kv.start_s, kv.segments[0].each_s) == ("history", pytest.approx(0.004), pytest.approx(3e-6))


def test_a_profile_has_a_fit_for_every_theta_and_direction() -> None:
    decode = [DecodePoint(b, b, 0.01 * b, theta) for b in (1, 2, 4) for theta in (1, 4)]
    kv = [KvPoint(n, d, 1e-6 * n, s, t) for n in (1, 2, 4) for d, s, t in (("history", 1, 4), ("increment", 4, 1))]  # type: ignore[arg-type]
    profile = fit_profile(META, Points(prefill_points() + prefill_points(theta=4), decode, kv))
    model = profile.cost_model()
    assert model.t_pre(512, 512, 4) == pytest.approx(model.t_pre(512, 512, 1) / 4, rel=1e-3)
    assert sorted(model.transfer) == [(1, 4, "history"), (4, 1, "increment")]


def test_too_few_or_impossible_points_are_refused() -> None:
    with pytest.raises(ProfileError, match="T_pre: 2 different points were measured, at least 3"):
        fit_t_pre([PrefillPoint(0, i, 0.1) for i in (1, 2, 2, 2)])
    with pytest.raises(ProfileError, match="T_dec: a measured time is not a positive number"):
        fit_t_dec([DecodePoint(b, b, 0.0) for b in (1, 2, 3)])
    with pytest.raises(ProfileError, match="T_dec: no point"):
        fit_profile(META, Points(prefill_points(), [], []))


def test_nnls_meets_its_optimality_conditions() -> None:
    rng = np.random.default_rng(11)
    clipped = 0
    for _ in range(200):
        a, b = rng.uniform(size=(4, 6)) * 10.0 ** rng.integers(-6, 6, 6), rng.uniform(size=4)
        x = nnls(a, b)
        gradient = (a / np.linalg.norm(a, axis=0)).T @ (b - a @ x)
        assert (x >= 0).all()
        assert np.abs(gradient[x > 0]).max(initial=0) < 1e-7
        assert gradient[x == 0].max(initial=-1) < 1e-7
        clipped += int((x == 0).any())
    assert clipped > 50
