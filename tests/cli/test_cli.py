"""The `ampd` command: one-line errors, exit codes, and commands that do not break each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from ampd import __version__
from ampd.cli.lazy import LazyGroup
from ampd.cli.main import COMMANDS, cli
from ampd.errors import SetupError

ROOT = Path(__file__).parents[2]
# Stands for a machine without the engine's packages.
BLOCK = "import sys; sys.modules.update(dict.fromkeys(['vllm', 'nixl', 'dynamo', 'torch', 'transformers']))"


def ampd(*args: str, code: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    run = f"{code}\nfrom ampd.cli.main import main\nmain()"
    return subprocess.run(
        [sys.executable, "-c", run, *args], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **env}, timeout=60
    )


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "graph.yaml"
    path.write_text("name: mine\nworkers: [{name: d, role: decode}]\n")
    return path


def test_check_needs_no_engine(graph: Path) -> None:
    done = ampd("config", "check", str(graph), code=BLOCK)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{graph}: ok: graph mine, model smollm2-135m, 1 decode (d)\n"


@pytest.mark.parametrize(
    ("key", "code", "words"),
    [
        ("model.path=/no/such/folder", 1, "model.path: /no/such/folder is no folder; give a model folder or one of "),
        ("profile=/no/such.json", 1, "profile: /no/such.json is no file; measure one with "),
        ("state.url=http://127.0.0.1", 2, "state.url http://127.0.0.1: "),
        ("workers=[{name: d, role: decode, cores: ['4096']}]", 2, "workers.0.cores = '4096': core 4096 is not usable here"),
    ],
)
def test_check_finds_what_serve_would(graph: Path, key: str, code: int, words: str) -> None:
    done = ampd("config", "check", str(graph), "--set", key, code=BLOCK)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith(f"ampd: {words}")
    assert done.stderr.count("\n") == 1
    assert ampd("serve", str(graph), "--set", key).stderr == done.stderr


@pytest.mark.parametrize("built_in", ["demo", "tiny", "small"])
def test_check_makes_no_model(graph: Path, tmp_path: Path, built_in: str) -> None:
    cache = tmp_path / "cache"
    done = ampd("config", "check", str(graph), "--set", f"model.path={built_in}", code=BLOCK, AMPD_CACHE_DIR=str(cache))
    assert (done.returncode, done.stderr, cache.exists()) == (0, "", False)


def test_show_prints_what_is_in_force(graph: Path) -> None:
    done = ampd("config", "show", str(graph), "--set", "targets.itl_s=0.2", AMPD_TARGETS__TTFT_S="7")
    assert done.returncode == 0
    assert "ttft_s: 7.0  # variable AMPD_TARGETS__TTFT_S\n  itl_s: 0.2  # --set targets.itl_s\n" in done.stdout


def test_show_names_the_source_of_every_value(graph: Path) -> None:
    whole = {"AMPD_TARGETS": "{ttft_s: 7, itl_s: 3}", "AMPD_STATE__HEARTBEAT_S": "1"}
    done = ampd("config", "show", str(graph), "--set", "targets.itl_s=0.2", "--set", "workers.0.env={A: b}", **whole)
    sources = dict(line.split(": ", 1) for line in done.stdout.replace("- ", "  ").splitlines() if "  # " in line and ": " in line)
    found = {key.strip(): rest.rpartition("  # ")[2] for key, rest in sources.items()}
    assert found["ttft_s"] == "variable AMPD_TARGETS"
    assert found["itl_s"] == "--set targets.itl_s"
    assert found["heartbeat_s"] == "variable AMPD_STATE__HEARTBEAT_S"
    assert found["A"] == "--set workers.0.env"
    assert found["deadline_ms"] == "default"
    assert found["role"] == "file"
    assert yaml.safe_load(done.stdout)["targets"] == {"ttft_s": 7.0, "itl_s": 0.2}


def test_bad_configuration_is_one_line_and_exit_code_2(graph: Path) -> None:
    for command in (["config", "check"], ["serve"]):
        done = ampd(*command, str(graph), "--set", "target.ttft_s=1")
        assert done.returncode == 2
        assert done.stdout == ""
        assert done.stderr == f"ampd: {graph}: unknown key target (did you mean targets?) (from --set target.ttft_s)\n"


def test_other_errors_are_one_line_and_exit_code_1(graph: Path) -> None:
    done = ampd("serve", str(graph), "--set", "model.path=/no/such/folder")
    assert done.returncode == 1
    assert done.stderr == "ampd: model.path: /no/such/folder is no folder; give a model folder or one of 'demo', 'tiny', 'small'\n"


def test_serve_without_the_engine(graph: Path) -> None:
    done = ampd("serve", str(graph), "--set", "model.path=tiny", code=BLOCK)
    assert done.returncode == 1
    assert done.stderr.startswith("ampd: the package ")
    assert done.stderr.endswith("is not installed; run 'make setup' (a GPU machine: see docs/install.md)\n")


def test_dry_run_prints_commands_and_starts_nothing(graph: Path, tmp_path: Path) -> None:
    done = ampd(
        "serve", str(graph), "--dry-run", "--port", "0", code=BLOCK, TMPDIR=str(tmp_path), AMPD_CACHE_DIR=str(tmp_path / "c")
    )
    assert done.returncode == 0, done.stderr
    for process in ("# redis", "# d-0", "# frontend", "# coordinator-0"):
        assert f"\n{process}\n" in done.stdout
    assert 'export DYN_FILE_KV="$RUN_DIR/discovery"' in done.stdout
    assert "--component d --index 0" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["graph.yaml"]


def test_dry_run_of_one_component(graph: Path) -> None:
    done = ampd("serve", str(graph), "--dry-run", "--component", "d", "--set", "state.url=redis://127.0.0.1:1")
    assert [line for line in done.stdout.splitlines() if line.startswith("# d-0")] == ["# d-0"]
    assert "# frontend" not in done.stdout
    assert "--namespace mine " in done.stdout


def test_dry_run_of_an_unknown_component(graph: Path) -> None:
    done = ampd("serve", str(graph), "--dry-run", "--component", "dd", "--set", "state.url=redis://127.0.0.1:1")
    assert (done.returncode, done.stderr) == (2, "ampd: --component dd: the graph has redis, d, frontend, coordinator\n")


def test_version() -> None:
    assert ampd("--version").stdout == f"ampd, version {__version__}\n"


def test_help_lists_every_command() -> None:
    done = ampd("--help", code=BLOCK)
    assert done.returncode == 0
    assert [name for name in COMMANDS if f"\n  {name} " not in done.stdout] == []


def test_every_command_can_be_imported() -> None:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        assert "not available" not in (command.short_help or ""), name


def test_a_command_that_cannot_be_imported_harms_no_other() -> None:
    group = LazyGroup("g", lazy={"broken": "ampd.no_such_module:command", "config": COMMANDS["config"]})
    runner = CliRunner()
    listing = runner.invoke(group, ["--help"])
    assert listing.exit_code == 0
    assert "No module named 'ampd.no_such_module'" in listing.output
    assert runner.invoke(group, ["config", "--help"]).exit_code == 0
    called = runner.invoke(group, ["broken", "--any", "thing"])
    assert isinstance(called.exception, SetupError)
    assert str(called.exception) == "'broken' is not available: No module named 'ampd.no_such_module'; run 'make setup'"


def test_unknown_command_suggests() -> None:
    done = ampd("serv")
    assert done.returncode == 2
    assert "No such command 'serv'" in done.stderr
