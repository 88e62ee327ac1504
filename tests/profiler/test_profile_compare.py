"""`ampd profile compare`."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from sample_profile import make_profile

from ampd.cli.main import main
from ampd.cost_model import Profile, save_profile
from ampd.profiler.compare import differences


@pytest.fixture(scope="module")
def profile() -> Profile:
    return make_profile()


def test_a_profile_does_not_differ_from_itself(profile: Profile) -> None:
    found, left_out = differences(profile, profile)
    assert [d.curve.name for d in found] == ["T_pre", "T_dec", "T_mixed", "T_kv", "T_kv"]
    assert all((d.ratio == 1).all() for d in found)
    assert left_out == []


def test_a_slower_function_shows_where_it_is_slower(profile: Profile) -> None:
    fit = profile.t_pre[0]
    steeper = [msgspec.structs.replace(s, each_s=2 * s.each_s) for s in fit.segments]
    other = msgspec.structs.replace(profile, t_pre=[msgspec.structs.replace(fit, segments=steeper, l_incr=(64, 512))])
    rows = {(d.curve.title): d.as_json() for d in differences(profile, other)[0]}
    row = rows["T_pre"]
    assert row["range"]["l_incr"] == [64, 512]  # what both measured
    assert row["worst_at"] == {"l_hist": 0, "l_incr": 512}  # most new tokens, least of the unchanged attention
    cost, slow = profile.cost_model(), other.cost_model()
    assert row["worst_ratio"] == pytest.approx(slow.t_pre(0, 512, 1) / cost.t_pre(0, 512, 1))
    assert 1 < row["median_ratio"] < row["worst_ratio"] < 2
    assert 0 < row["p95_difference"] <= row["worst_ratio"] - 1
    assert rows["T_dec"]["worst_ratio"] == 1


def test_a_faster_one_is_worst_where_it_is_fastest(profile: Profile) -> None:
    fit = profile.t_kv[0]
    faster = msgspec.structs.replace(fit, start_s=fit.start_s / 3)
    found, _ = differences(profile, msgspec.structs.replace(profile, t_kv=[faster]))
    row = found[-1].as_json()
    assert row["worst_at"] == {"tokens": 64}
    assert row["worst_ratio"] == pytest.approx(row["median_ratio"], abs=1)
    assert row["worst_ratio"] < 1


def test_no_batch_is_compared_at_contexts_that_it_cannot_have(profile: Profile) -> None:
    found, _ = differences(profile, profile)
    for difference in found:
        if difference.curve.name in ("T_dec", "T_mixed"):
            assert all(64 * batch <= context <= 1024 * batch for batch, context, *_ in difference.args)


def test_the_command_prints_and_writes_what_differs(tmp_path: Path, profile: Profile, capsys: pytest.CaptureFixture[str]) -> None:
    slower = msgspec.structs.replace(make_profile(slower=1.5), t_mixed=[])
    for name, one in (("a", profile), ("b", slower)):
        save_profile(one, tmp_path / f"{name}.json")
    with pytest.raises(SystemExit) as exit:
        main(["profile", "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--json", str(tmp_path / "out.json")])
    out = capsys.readouterr().out
    assert exit.value.code in (0, None)
    assert "only in A: T_mixed (theta 1)" in out
    document = json.loads((tmp_path / "out.json").read_text())
    assert [r["name"] for r in document["rows"]] == ["T_pre", "T_dec", "T_kv", "T_kv"]
    assert all(r["median_ratio"] == pytest.approx(1.5, rel=0.01) for r in document["rows"])


def test_profiles_without_a_common_function_are_an_error(
    tmp_path: Path, profile: Profile, capsys: pytest.CaptureFixture[str]
) -> None:
    save_profile(profile, tmp_path / "a.json")
    save_profile(make_profile(theta=4), tmp_path / "b.json")
    with pytest.raises(SystemExit) as exit:
        main(["profile", "compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")])
    assert exit.value.code == 1
    assert "nothing to compare" in capsys.readouterr().err
