"""What `ampd profile` says and refuses before it starts an engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ampd.config import load_graph
from ampd.errors import ProfileError
from ampd.profiler.cli import profile
from ampd.profiler.journal import journal_path, open_journal
from ampd.profiler.run import make_task

Run = Callable[..., Result]
ROOT = Path(__file__).parents[2]
TINY = str(ROOT / "configs/tiny-test.yaml")


@pytest.fixture
def run(tiny_model: Path) -> Run:
    def invoke(*args: str, graph: str = TINY) -> Result:
        return CliRunner().invoke(profile, ["--graph", graph, "--set", f"model.path={tiny_model}", *args])

    return invoke


def test_a_dry_run_names_every_point_and_the_time_and_starts_nothing(run: Run) -> None:
    imported = "vllm" in sys.modules  # by another test
    result = run("--dry-run", "--quick")
    assert result.exit_code == 0, result.output
    for text in ("prefill: 28 points", "512+64", "decode:", "16x256", "mixed:", "8x512x200", "history:", "increment:", "4096"):
        assert text in result.output
    assert "2 to 4 samples each (quick)" in result.output
    assert " s, engine start included" in result.output
    assert ("vllm" in sys.modules) == imported


def test_the_out_file_is_asked_for(run: Run) -> None:
    result = run()
    assert result.exit_code == 2
    assert "--out" in result.output


@pytest.mark.parametrize(
    ("workers", "says"),
    [
        ("[{name: d, role: decode}]", "role: prefill"),
        ("[{name: p, role: prefill, engine: sim}, {name: d, role: decode, engine: sim}]", "workers.0.engine = 'sim'"),
    ],
)
def test_a_graph_that_cannot_be_measured_is_one_line_and_exit_code_2(
    tmp_path: Path, tiny_model: Path, workers: str, says: str
) -> None:
    graph = tmp_path / "graph.yaml"
    graph.write_text(f"model: {{path: {tiny_model}}}\nworkers: {workers}\n")
    command = [sys.executable, "-m", "ampd.profiler", "--graph", str(graph), "--out", str(tmp_path / "p.json")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "p.json").exists()


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ("model.dtype=bfloat16", "settings.dtype 'float32', not 'bfloat16'"),
        ("model.served_name=other", "model 'tiny', not 'other'"),
        ("workers.1.prefill_chunk=256", "decode.prefill_chunk 512, not 256"),
    ],
)
def test_samples_of_another_config_are_refused_before_any_engine_starts(
    run, tmp_path: Path, tiny_model: Path, changed: str, says: str
) -> None:
    out = tmp_path / "p.json"
    task = make_task(load_graph(TINY, [f"model.path={tiny_model}"]), quick=True)
    with open_journal(journal_path(out), task.identity, fresh=False) as journal:
        journal.add(task.spots[0], 0.1)
    imported = "vllm" in sys.modules
    result = run("--quick", "--out", str(out), "--set", changed)
    assert isinstance(result.exception, ProfileError)
    assert says in str(result.exception)
    assert "--fresh" in str(result.exception)
    assert ("vllm" in sys.modules) == imported


def test_kept_samples_are_told_in_a_dry_run(run: Run, tmp_path: Path, tiny_model: Path) -> None:
    out = tmp_path / "p.json"
    task = make_task(load_graph(TINY, [f"model.path={tiny_model}"]), quick=True)
    with open_journal(journal_path(out), task.identity, fresh=False) as journal:
        journal.add(task.spots[0], 0.1)
    assert "1 samples" in run("--quick", "--dry-run", "--out", str(out)).output


def test_options_of_an_estimate_and_of_a_run_do_not_mix(run: Run, tmp_path: Path) -> None:
    assert run("--model", "x", "--out", str(tmp_path / "p.json")).exit_code == 2
    assert run("--silicon", "h200", "--out", str(tmp_path / "p.json")).exit_code == 2
