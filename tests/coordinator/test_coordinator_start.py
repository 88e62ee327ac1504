"""What `python -m ampd.coordinator` says when it cannot start: one line that names the setting and the fix."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from api_graph import make_tokenizer
from redis_server import RedisServer
from sim_model import make_graph

from ampd.config import dump_graph


def start(folder: Path, graph: dict[str, Any], **variables: str) -> tuple[int, str]:
    """Exit code and the last line of the log."""
    (folder / "graph.yaml").write_text(yaml.safe_dump(graph))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("DYN_", "AMPD_"))}
    env |= {"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(folder / "discovery"), "DYN_TCP_RPC_HOST": "127.0.0.1", **variables}
    command = [sys.executable, "-m", "ampd.coordinator", "--config", str(folder / "graph.yaml"), "--namespace", "ns"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr.strip().splitlines()[-1]


def graph_of(folder: Path, redis_url: str, **sections: Any) -> dict[str, Any]:
    graph = make_graph(model={"path": str(folder / "model"), "block_size": 4}, state={"url": redis_url}, **sections)
    return dict(yaml.safe_load(dump_graph(graph)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_tokenizer(tmp_path / "model")
    return tmp_path


def test_unknown_key(folder: Path, redis_child: RedisServer) -> None:
    code, line = start(folder, {**graph_of(folder, redis_child.url), "polcy": {}})
    assert code == 2
    assert "polcy" in line
    assert "did you mean policy" in line


def test_unreachable_redis(folder: Path) -> None:
    code, line = start(folder, graph_of(folder, f"unix://{folder}/nobody.sock"))
    assert code == 1
    assert line.startswith("ampd coordinator: ")
    assert "nobody.sock" in line


def test_model_without_tokenizer(folder: Path, redis_child: RedisServer) -> None:
    (folder / "model" / "tokenizer.json").unlink()
    code, line = start(folder, graph_of(folder, redis_child.url))
    assert code == 1
    assert "model.path" in line
    assert "tokenizer.json" in line


def test_profile_of_another_model(folder: Path, redis_child: RedisServer) -> None:
    profile = Path(__file__).parents[2] / "configs" / "profiles" / "smollm2-135m-cpu.json"
    code, line = start(folder, graph_of(folder, redis_child.url, profile=str(profile)))
    assert code == 1
    assert "block size" in line or "model" in line


def test_bad_runtime_variable(folder: Path, redis_child: RedisServer) -> None:
    code, line = start(folder, graph_of(folder, redis_child.url), DYN_SYSTEM_PORT="many")
    assert code == 1
    assert "SYSTEM_PORT" in line
    assert "check the DYN_* variables" in line


def test_missing_graph(folder: Path) -> None:
    command = [sys.executable, "-m", "ampd.coordinator", "--config", str(folder / "none.yaml"), "--namespace", "ns"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "no such file" in done.stderr
    assert "Traceback" not in done.stderr
