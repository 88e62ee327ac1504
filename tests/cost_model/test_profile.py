"""The profile's file form, its refusals, and its cost functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ampd.cost_model import (
    CoarseCostModel,
    DecodePoint,
    KvPoint,
    Meta,
    Points,
    PrefillPoint,
    Profile,
    load_profile,
    save_profile,
)
from ampd.cost_model.fitting import fit_profile
from ampd.cost_model.functions import FitError, PrefillFit, Segment, TransferFit
from ampd.cost_model.piecewise import PiecewiseCostModel
from ampd.errors import ProfileError

ERROR = FitError(0.01, 0.05, 40)


@pytest.fixture
def profile() -> Profile:
    meta = Meta(
        model="smollm2",
        engine="vllm",
        engine_version="0.31.0",
        device="cpu",
        block_size=32,
        kv_bytes_per_token=23040,
        kv_capacity_tokens=40_000,
        created="2026-01-01T00:00:00Z",
        transport="tcp",
    )
    prefill = [PrefillPoint(h, i, 0.01 + 1e-4 * i + 1e-8 * i * h) for h in (0, 1024) for i in (16, 256, 1024)]
    decode = [DecodePoint(b, 512 * b, 0.01 + 0.001 * b) for b in (1, 4, 8)]
    kv = [KvPoint(n, d, 0.004 + 1e-6 * n) for n in (512, 1024, 4096) for d in ("history", "increment")]  # type: ignore[arg-type]
    return fit_profile(meta, Points(prefill, decode, kv))


def test_a_saved_profile_is_the_same_and_readable(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "new" / "profile.json"
    save_profile(profile, path)
    assert load_profile(path) == profile
    assert len(path.read_text().splitlines()) > 50
    assert [p.name for p in path.parent.iterdir()] == ["profile.json"]


def test_pieces_join_without_a_step_and_each_has_its_own_rates() -> None:
    segments = [Segment(100, 1.0, 0.01), Segment(300, 0.5, 0.02), Segment(None, 2.0, 0.0)]
    model = PiecewiseCostModel([PrefillFit(2, 10.0, 0.1, segments, (0, 50), (1, 500), ERROR)], [], [])

    def by_hand(l_hist: int, l_incr: int) -> float:
        """The sum over new tokens, as the continuous integral that the function is."""
        total = 10.0 + 0.1 * l_hist
        for a, b, each, pair in ((0, 100, 1.0, 0.01), (100, 300, 0.5, 0.02), (300, 10**9, 2.0, 0.0)):
            n = max(0, min(l_incr, b) - a)
            total += n * (each + pair * (l_hist + a + n / 2))
        return total

    for l_hist in (0, 7, 1000):
        for l_incr in (1, 99, 100, 101, 300, 301, 900):
            assert model.t_pre(l_hist, l_incr, 2) == pytest.approx(by_hand(l_hist, l_incr))
    assert model.t_pre(50, 0, 2) == 0.0


def test_extrapolation_is_flagged(profile: Profile) -> None:
    model = profile.cost_model()
    assert model.knows_t_pre(1024, 16, 1)
    assert not model.knows_t_pre(1025, 16, 1)
    assert not model.knows_t_pre(0, 1025, 1)
    assert model.knows_t_dec(8, 4096, 1)
    assert not model.knows_t_dec(9, 4096, 1)
    assert model.knows_t_kv(512, 1, 1, "history")
    assert not model.knows_t_kv(511, 1, 1, "history")
    assert model.t_pre(4096, 4096, 1) > model.t_pre(1024, 1024, 1)
    assert model.t_kv(0, 1, 1, "history") == 0.0
    assert model.t_dec(0, 0, 1) == 0.0


def test_a_theta_without_fit_is_an_error(profile: Profile) -> None:
    model = profile.cost_model()
    with pytest.raises(ProfileError, match=r"no T_pre for theta 8, only for \[1\]"):
        model.t_pre(0, 1, 8)
    with pytest.raises(ProfileError, match="no T_kv"):
        model.t_kv(1, 1, 2, "history")


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ({"model": "other"}, "is of model 'smollm2', the engine serves 'other'"),
        ({"block_size": 16}, "is of block size 32, the engine's is 16"),
        ({"theta": 2}, r"covers theta \[1\], the engine runs theta 2"),
    ],
)
def test_a_foreign_profile_is_refused(profile: Profile, theirs: dict[str, Any], message: str) -> None:
    mine = {"model": "smollm2", "theta": 1, "block_size": 32}
    profile.check(**mine)
    with pytest.raises(ProfileError, match=message) as e:
        profile.check(**{**mine, **theirs})
    assert "\n" not in str(e.value)


def test_bad_files_are_refused_in_one_line(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    save_profile(profile, path)
    good = path.read_text()

    def edited(**changes: Any) -> str:
        return json.dumps({**json.loads(good), **changes})

    fit = json.loads(good)["t_pre"][0]
    cases = {
        good[: len(good) // 2]: "not valid JSON, perhaps truncated",
        "": "not valid JSON",
        "[1]": "not an ampd profile",
        '{"format": "else", "version": 1}': "not an ampd profile",
        edited(version=3): "version 3 is newer than this ampd reads",
        edited(t_pre=[{**fit, "start_s": -1.0}]): r"start_s",
        edited(t_pre=[{**fit, "segments": []}]): "segments must not be empty",
        edited(
            t_pre=[{**fit, "segments": [*fit["segments"][:-1], {"up_to": 5, "each_s": 1}]}]
        ): "the last segment must have no end",
        edited(surprise=1): "surprise",
        edited(meta={}): "model",
    }
    for text, message in cases.items():
        path.write_text(text)
        with pytest.raises(ProfileError, match=message) as e:
            load_profile(path)
        assert "\n" not in str(e.value)
        assert str(path) in str(e.value)
    with pytest.raises(ProfileError, match="no such file"):
        load_profile(tmp_path / "none.json")
    with pytest.raises(ProfileError, match="cannot be read"):
        load_profile(tmp_path)


def test_segments_must_grow() -> None:
    with pytest.raises(ValueError, match="up_to must grow"):
        TransferFit(1, 1, "history", 0.0, [Segment(9, 1.0), Segment(9, 1.0), Segment(None, 1.0)], (1, 2), ERROR)


def test_the_coarse_model_is_near_what_it_stands_for() -> None:
    model = CoarseCostModel()
    for tokens, seconds in ((256, 0.09), (1024, 0.32), (4096, 2.5)):
        assert model.t_pre(0, tokens, 1) == pytest.approx(seconds, rel=0.25)
    assert model.t_dec(1, 256, 1) == pytest.approx(0.013, rel=0.1)
    assert model.t_kv(0, 1, 1, "history") == 0.0
