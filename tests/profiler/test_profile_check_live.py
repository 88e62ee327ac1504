"""`ampd profile check` against real engines."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
from sample_profile import make_profile

from ampd.cost_model import Profile, save_profile

ROOT = Path(__file__).parents[2]


async def check(profile: Profile, model: Path, folder: Path, *args: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    save_profile(profile, folder / "p.json")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ampd.profiler", "check", str(folder / "p.json"), "--graph", str(ROOT / "configs/tiny-test.yaml"),
        "--set", f"model.path={model}", "--set", "model.max_model_len=1280", *args,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


@pytest.mark.timeout(280)
async def test_engines_a_thousand_times_faster_than_their_profile_have_drifted(tiny_model: Path, tmp_path: Path) -> None:
    code, out, err = await check(make_profile(slower=1000), tiny_model, tmp_path, "--points", "2", "--json", "-")
    assert code == 1, err[-3000:]
    assert "drifted beyond 0.25" in err
    rows = json.loads(out)["rows"]
    assert [(r["name"], r["direction"]) for r in rows] == [
        ("T_pre", None), ("T_dec", None), ("T_mixed", None), ("T_kv", "history"), ("T_kv", "increment"),
    ]  # fmt: skip
    assert all(r["drifted"] and 0 < r["ratio"] < 0.5 for r in rows)
    prefill = [p["profile_s"] * p["ratio"] for p in rows[0]["points"]]
    assert 0 < prefill[0] < prefill[1] < 60  # seconds measured: the second point is the larger


@pytest.mark.parametrize(
    ("meta", "said"),
    [({"model": "another"}, "'another'"), ({"block_size": 16}, "block size 16")],
)
async def test_a_profile_of_other_engines_is_refused_before_any_starts(
    tiny_model: Path, tmp_path: Path, meta: dict[str, object], said: str
) -> None:
    code, out, err = await check(make_profile(**meta), tiny_model, tmp_path)
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert said in err


async def test_a_bound_of_nothing_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    code, _, err = await check(make_profile(), tiny_model, tmp_path, "--bound", "0")
    assert code == 2
    assert "--bound" in err
