"""The profile's file form, its refusals, and its cost functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
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
VERSION_1_META = {
    "model",
    "engine",
    "engine_version",
    "device",
    "block_size",
    "kv_bytes_per_token",
    "kv_capacity_tokens",
    "created",
    "transport",
    "source",
    "notes",
}


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
        ({"model": "other", "theta": 2}, r"is of model .*; the profile covers theta .* foreign_profile: true"),
    ],
)
def test_a_foreign_profile_is_refused(profile: Profile, theirs: dict[str, Any], message: str) -> None:
    mine = {"model": "smollm2", "theta": 1, "block_size": 32}
    profile.check(**mine)
    with pytest.raises(ProfileError, match=message) as e:
        profile.check(**{**mine, **theirs})
    assert "\n" not in str(e.value)
    profile.check(**{**mine, **theirs}, foreign=True)
    assert len(profile.mismatches(**{**mine, **theirs})) == len(theirs)


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
        edited(t_pre=[]): "t_pre must not be empty",
        edited(version=0): "version 0 does not exist",
        edited(complete=False): "was interrupted; the same `ampd profile` goes on from it",
        edited(points={"prefill": [{"l_hist": 0, "l_incr": 1, "seconds": -1}]}): r"points.prefill\[0\].seconds",
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


def test_an_interrupted_runs_file_is_read_by_who_goes_on_from_it(profile: Profile, tmp_path: Path) -> None:
    begun = Profile(complete=False, meta=profile.meta, points=profile.points)
    save_profile(begun, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json", unfinished=True) == begun
    assert load_profile(tmp_path / "p.json", unfinished=True).points.prefill == profile.points.prefill
    with pytest.raises(ProfileError, match="interrupted"):
        load_profile(tmp_path / "p.json")


def test_a_file_of_version_1_is_read_as_what_it_says_in_version_2(profile: Profile, tmp_path: Path) -> None:
    error = {"heldout_median": 0.01, "heldout_p95": 0.05, "points": 40}
    fitted = {"segments": [{"up_to": None, "each_s": 1e-4, "pair_s": 0.0}], "error": error}
    of_theta = {"theta": 1, "start_s": 0.01, **fitted}
    meta = {k: v for k, v in msgspec.to_builtins(profile.meta).items() if k in VERSION_1_META}
    old = {
        "format": "ampd-profile",
        "version": 1,
        "meta": meta,
        "t_pre": [{**of_theta, "history_token_s": 0.0, "l_hist": [0, 9], "l_incr": [1, 9]}],
        "t_dec": [{**of_theta, "context_token_s": 0.0, "batch": [1, 9], "context": [1, 9]}],
        "t_kv": [{"theta_src": 1, "theta_dst": 1, "direction": "history", "start_s": 0.5, "tokens": [1, 9], **fitted}],
        "points": {"prefill": [{"l_hist": 0, "l_incr": 16, "seconds": 0.05, "theta": 1}], "decode": [], "kv": []},
    }
    path = tmp_path / "old.json"
    path.write_text(json.dumps(old))
    read = load_profile(path)
    assert (read.version, read.meta.model, read.t_mixed) == (2, "smollm2", [])
    assert read.cost_model().t_kv(100, 1, 1, "history") == pytest.approx(0.51)
    assert read.cost_model().t_mixed(1, 5, 10, 1) == pytest.approx(0.01 + 1e-4 + 0.01 + 1e-3)
    save_profile(read, path)
    assert load_profile(path) == read


def test_a_point_takes_one_line_whatever_text_is_around_it(profile: Profile, tmp_path: Path) -> None:
    notes = 'braces {  "a": [1,\n   2] }  and "quotes"'
    odd = msgspec.structs.replace(profile, meta=msgspec.structs.replace(profile.meta, notes=notes))
    save_profile(odd, tmp_path / "p.json")
    assert load_profile(tmp_path / "p.json") == odd
    lines = [line.strip(" ,") for line in (tmp_path / "p.json").read_text().splitlines()]
    point = next(p for p in profile.points.prefill if (p.l_hist, p.l_incr) == (1024, 256))
    assert f'{{"l_hist": 1024, "l_incr": 256, "seconds": {point.seconds}}}' in lines
    assert '"l_hist": [0, 1024]' in lines


def test_segments_must_grow() -> None:
    with pytest.raises(ValueError, match="no pair_s"):
        TransferFit(1, 1, "history", 0.0, [Segment(None, 1.0, 1.0)], (1, 2), ERROR)
    with pytest.raises(ValueError, match="up_to must grow"):
        TransferFit(1, 1, "history", 0.0, [Segment(9, 1.0), Segment(9, 1.0), Segment(None, 1.0)], (1, 2), ERROR)


def test_the_coarse_model_is_near_what_it_stands_for() -> None:
    model = CoarseCostModel()
    for tokens, seconds in ((256, 0.09), (1024, 0.32), (4096, 2.5)):
        assert model.t_pre(0, tokens, 1) == pytest.approx(seconds, rel=0.25)
    assert model.t_dec(1, 256, 1) == pytest.approx(0.013, rel=0.1)
    assert model.t_kv(0, 1, 1, "history") == 0.0
