"""`ampd profile` on a real engine pair."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from ampd.cost_model import load_profile

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(280)
async def test_a_profile_is_measured_fitted_and_read_back(tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "profiles" / "tiny.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ampd.profiler", "--graph", str(ROOT / "configs/tiny-test.yaml"), "--out", str(out), "--quick",
        "--set", f"model.path={tiny_model}", "--set", "model.max_model_len=1280",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    text = (await process.communicate())[0].decode()
    assert process.returncode == 0, text[-3000:]
    profile = load_profile(out)
    profile.check(model="tiny", theta=1, block_size=32)
    assert profile.meta.kv_bytes_per_token == 4096
    points = profile.points
    # A history point counts only if the engine's own figures say that all of it was cached.
    assert {p.l_hist for p in points.prefill} == {0, 512}
    assert {p.direction for p in points.kv} == {"history", "increment"}
    assert {p.tokens for p in points.kv if p.direction == "history"} == {32, 128, 512, 1024}
    assert all(p.seconds > 0 for p in (*points.prefill, *points.decode, *points.kv))
    cost = profile.cost_model()
    assert cost.t_pre(0, 1024, 1) > cost.t_pre(512, 512, 1) > cost.t_pre(512, 16, 1)
    assert 0 < cost.t_kv(32, 1, 1, "history") <= cost.t_kv(1024, 1, 1, "history")
    for function in ("T_pre", "T_dec", "T_kv history", "T_kv increment"):
        assert function in text


async def test_a_graph_without_prefill_worker_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    graph = tmp_path / "graph.yaml"
    graph.write_text(f"model: {{path: {tiny_model}}}\nworkers: [{{name: d, role: decode}}]\n")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ampd.profiler", "--graph", str(graph), "--out", str(tmp_path / "p.json"),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    err = (await process.communicate())[1].decode()
    assert process.returncode == 2
    assert "role: prefill" in err
    assert len(err.strip().splitlines()) == 1
