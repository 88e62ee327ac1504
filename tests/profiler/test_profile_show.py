"""`ampd profile show`: tables, JSON rows, and refusals in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from sample_profile import make_profile, true_t_kv, true_t_pre

from ampd.cli.main import main
from ampd.cost_model import Profile, save_profile
from ampd.cost_model.functions import RegionError

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def profile() -> Profile:
    return make_profile()


@pytest.fixture
def file(profile: Profile, tmp_path: Path) -> Path:
    save_profile(profile, tmp_path / "p.json")
    return tmp_path / "p.json"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`ampd profile ...`: exit code, standard output, standard error."""

    def call(*args: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit:
            main(["profile", *map(str, args)])
        out, err = capsys.readouterr()
        return int(exit.value.code or 0), out, err

    return call


def test_the_table_has_every_function_with_its_errors_and_worst_regions(run: Run, file: Path, profile: Profile) -> None:
    code, out, _ = run("show", file)
    assert code == 0
    for name in ("T_pre", "T_dec", "T_mixed", "T_kv history", "T_kv increment"):
        assert name in out
    assert f"{100 * profile.t_pre[0].error.heldout_p95:.1f} %" in out
    assert "l_hist 0..1,024, l_incr 16..1,024" in out
    assert "the 3 worst regions" in out
    shown = sum(line.startswith(" ") and ".." in line for line in out.splitlines())
    every = sum(line.startswith(" ") and ".." in line for line in run("show", file, "--regions")[1].splitlines())
    regions = [len(f.error.regions) for f in (*profile.t_pre, *profile.t_dec, *profile.t_mixed, *profile.t_kv)]
    assert every == sum(regions)
    assert shown == sum(min(3, count) for count in regions)


def test_the_regions_that_are_shown_are_the_worst(run: Run, profile: Profile, tmp_path: Path) -> None:
    fit = profile.t_pre[0]
    p95s = {11: 0.04, 12: 0.7, 13: 0.05, 14: 0.9, 15: 0.8}
    regions = [RegionError({"l_incr": (at, at)}, heldout_median=0.01, heldout_p95=p95, points=2) for at, p95 in p95s.items()]
    fit = msgspec.structs.replace(fit, error=msgspec.structs.replace(fit.error, regions=regions))
    save_profile(msgspec.structs.replace(profile, t_pre=[fit]), tmp_path / "regions.json")
    _, out, _ = run("show", tmp_path / "regions.json")
    assert [at for at in range(11, 16) if f"l_incr {at}..{at}" in out] == [12, 14, 15]
    assert out.index("90.0 %") < out.index("80.0 %") < out.index("70.0 %")


def test_json_rows_carry_the_fields_of_the_issue(run: Run, file: Path, profile: Profile) -> None:
    code, out, err = run("show", file, "--json", "-")
    assert code == 0
    rows = json.loads(out)["rows"]
    assert "T_pre" in err  # the table went there
    assert [(r["name"], r["theta"], r["direction"]) for r in rows] == [
        ("T_pre", 1, None), ("T_dec", 1, None), ("T_mixed", 1, None), ("T_kv", 1, "history"), ("T_kv", 1, "increment"),
    ]  # fmt: skip
    fit = profile.t_dec[0]
    assert rows[1]["heldout_median_error"] == fit.error.heldout_median
    assert rows[1]["heldout_p95_error"] == fit.error.heldout_p95
    assert rows[1]["points"] == 9
    assert rows[1]["range"] == {"batch": [1, 16], "context": [64, 16384]}
    assert [r["where"]["batch"] for r in rows[1]["regions"]] == [list(r.where["batch"]) for r in fit.error.regions]


def test_an_error_that_nobody_measured_is_not_called_zero(run: Run, profile: Profile, tmp_path: Path) -> None:
    fit = msgspec.structs.replace(
        profile.t_pre[0], error=msgspec.structs.replace(profile.t_pre[0].error, heldout_median=0.0, heldout_p95=0.0, regions=[])
    )
    meta = msgspec.structs.replace(profile.meta, source="estimated")
    save_profile(msgspec.structs.replace(profile, t_pre=[fit], meta=meta), tmp_path / "drawn.json")
    _, out, _ = run("show", tmp_path / "drawn.json")
    assert "not measured" in out
    assert "not against an engine" in out
    assert "nothing was held out" in out
    _, out, _ = run("show", tmp_path / "drawn.json", "--json", "-")
    assert json.loads(out)["rows"][0]["heldout_median_error"] is None


def test_the_share_of_a_trace_is_that_of_the_cost_functions(run: Run, tmp_path: Path) -> None:
    save_profile(make_profile(scatter=0.0), tmp_path / "exact.json")
    rounds = [(600, 0), (1000, 512), (1300, 900), (5000, 1300), (1200, 1200)]  # the first and the last add nothing to a history
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps({"session": "s", "rounds": [{"prompt": p, "history": h, "output": 5} for p, h in rounds]}) + "\n")
    code, out, _ = run("show", tmp_path / "exact.json", "--trace", trace, "--json", "-")
    assert code == 0
    (share,) = json.loads(out)["trace"]
    ratios = sorted((true_t_kv(h) + true_t_kv(p - h)) / true_t_pre(h, p - h) for p, h in rounds[1:4])
    assert share["rounds"] == 3
    assert share["kv_over_pre_median"] == pytest.approx(ratios[1], rel=1e-2)
    assert share["rounds_outside_measured_range"] == 1  # 3,700 new tokens after 1,300


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"format": "ampd-profile", "version": 2, "meta": {"mod', "truncated"),
        (b'{"nodes": 3}', "not an ampd profile"),
        (b'{"format": "ampd-profile", "version": 99}', "version 99 is newer"),
        (b"\x00\xff\x80 binary", "not valid JSON"),
        (None, "no such file"),
    ],
)
@pytest.mark.parametrize("command", [("show",), ("compare", "p.json")])
def test_what_is_no_profile_is_refused_in_one_line(
    run: Run, file: Path, tmp_path: Path, content: bytes | None, said: str, command: tuple[str, ...]
) -> None:
    bad = tmp_path / "bad.json"
    if content is not None:
        bad.write_bytes(content)
    code, out, err = run(command[0], *(tmp_path / name for name in command[1:]), bad)
    assert code == 1
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert said in err
    assert "bad.json" in err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00", "no text"),
        (b"not json\n", "bad.jsonl:1"),
        (b'{"session": "s", "rounds": [{"prompt": 5, "history": 9, "output": 1}]}\n', "prompt >= history"),
        (b'{"session": "s", "rounds": [{"prompt": 5, "history": 0, "output": 1}]}\n', "no incremental round"),
        (b"", "no sessions"),
        (None, "cannot be read"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(run: Run, file: Path, tmp_path: Path, content: bytes | None, said: str) -> None:
    bad = tmp_path / "bad.jsonl"
    if content is not None:
        bad.write_bytes(content)
    code, out, err = run("show", file, "--trace", bad)
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert said in err


@pytest.mark.parametrize("direction", ["history", "increment"])
def test_a_profile_without_one_direction_of_t_kv_has_no_share(run: Run, profile: Profile, tmp_path: Path, direction: str) -> None:
    one = [fit for fit in profile.t_kv if fit.direction == direction]
    save_profile(msgspec.structs.replace(profile, t_kv=one), tmp_path / "half.json")
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        '{"session": "s", "rounds": [{"prompt": 5, "history": 0, "output": 1}, {"prompt": 9, "history": 5, "output": 1}]}'
    )
    code, _, err = run("show", tmp_path / "half.json", "--trace", trace)
    assert code == 1
    assert "T_kv both ways" in err
