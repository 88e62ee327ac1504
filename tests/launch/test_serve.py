"""`ampd serve` as a person and an init system meet it: a command that gets signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import drive_serve
import psutil
import pytest

from ampd.launch.plan import GRACE_S

WAIT_S = 30.0


class Serve:
    """A running `ampd serve` whose output is followed."""

    def __init__(self, process: subprocess.Popen[str], output: Path) -> None:
        self.process = process
        self._output = output

    def text(self) -> str:
        return self._output.read_text()

    def wait_for(self, words: str) -> str:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            if words in self.text():
                return self.text()
            time.sleep(0.02)
        pytest.fail(f"{words!r} did not appear in:\n{self.text()}")

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self) -> int:
        return self.process.wait(WAIT_S)


@pytest.fixture
def serve(model: Path, runs: Path, tmp_path: Path) -> Callable[..., object]:
    graph = tmp_path / "graph.yaml"
    workers = "[{name: prefill, role: prefill}, {name: decode, role: decode}]"
    graph.write_text(f"model: {{path: {model}, served_name: m}}\nworkers: {workers}\n")

    @contextmanager
    def start(*args: str, **flags: list[str]) -> Iterator[Serve]:
        by_name = {name.replace("_", "-"): values for name, values in flags.items()}
        command = [sys.executable, drive_serve.__file__, str(tmp_path / "notes"), json.dumps(by_name), "serve", str(graph), *args]
        output = tmp_path / "output"
        with output.open("w") as out:
            env = {**os.environ, "TMPDIR": str(runs)}
            process = subprocess.Popen(command, stdout=out, stderr=out, text=True, env=env, start_new_session=True)
        try:
            yield Serve(process, output)
        finally:
            process.kill()
            process.wait()

    return start


Start = Callable[..., contextmanager]  # type: ignore[type-arg]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_serves_until_a_signal(serve: Start, runs: Path, number: signal.Signals) -> None:
    with serve() as run:
        text = run.wait_for("curl")
        assert text.count("ready in") == 1
        url = re.search(r"curl -s (http://\S+)/v1/chat/completions", text)
        assert url is not None
        with urllib.request.urlopen(f"{url[1]}/v1/models") as answer:
            assert json.load(answer)["data"] == [{"id": "m"}]
        children = run.children()
        assert len(children) == 6  # five of the graph, and the guard
        began = time.monotonic()
        run.process.send_signal(number)
        assert run.end() == 0
        assert time.monotonic() - began < 15
    assert psutil.wait_procs(children, timeout=5)[1] == []
    assert list(runs.iterdir()) == []


@pytest.mark.parametrize("pause_s", [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
def test_a_signal_at_any_moment_of_the_start(serve: Start, runs: Path, pause_s: float) -> None:
    with serve(decode_0=["--never-ready"]) as run:
        time.sleep(pause_s)
        children = run.children()
        run.process.send_signal(signal.SIGTERM)
        code = run.end()
    # Before Python runs any of our code, the signal's default action ends it.
    assert code in (0, -signal.SIGTERM)
    assert psutil.wait_procs(children, timeout=5)[1] == []
    assert list(runs.iterdir()) == []


def test_a_second_signal_kills(serve: Start, runs: Path) -> None:
    with serve(decode_0=["--stubborn"]) as run:
        run.wait_for("curl")
        children = run.children()
        began = time.monotonic()
        run.process.send_signal(signal.SIGINT)
        run.wait_for("a second signal kills")
        run.process.send_signal(signal.SIGINT)
        assert run.end() == 0
        assert time.monotonic() - began < GRACE_S["worker"], "it takes a moment, and would have that long"
    assert psutil.wait_procs(children, timeout=5)[1] == []
    assert list(runs.iterdir()) == []


def test_a_killed_launcher_takes_its_processes_along(serve: Start, runs: Path) -> None:
    with serve() as run:
        run.wait_for("curl")
        children = run.children()
        run.process.kill()
        run.end()
        assert psutil.wait_procs(children, timeout=WAIT_S)[1] == []
    deadline = time.monotonic() + 5
    while list(runs.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(runs.iterdir()) == []


def test_a_death_while_serving_ends_it_with_a_report(serve: Start, tmp_path: Path, runs: Path) -> None:
    now = tmp_path / "now"
    with serve(coordinator_0=["--say", "lost my mind", "--exit", "7", "--exit-when", str(now)]) as run:
        run.wait_for("curl")
        children = run.children()
        now.touch()
        assert run.end() == 1
        text = run.text()
    assert "ampd: coordinator-0 exited with code 7; the last lines of its log (" in text
    assert "lost my mind" in text
    assert "Traceback" not in text
    assert psutil.wait_procs(children, timeout=5)[1] == []


def test_keep_going(serve: Start, tmp_path: Path) -> None:
    now = tmp_path / "now"
    with serve("--keep-going", prefill_0=["--exit", "7", "--exit-when", str(now)]) as run:
        run.wait_for("curl")
        now.touch()
        run.wait_for("the rest of the graph keeps running")
        assert run.process.poll() is None
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 0


def test_a_signal_while_a_model_is_made_leaves_none(serve: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AMPD_CACHE_DIR", str(tmp_path / "cache"))
    with serve("--set", "model.path=tiny") as run:
        run.wait_for("preparing model 'tiny'")
        children = run.children()
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 0
        assert "stopped before the start" in run.text()
    assert psutil.wait_procs(children, timeout=5)[1] == []
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_a_taken_port_is_named(serve: Start) -> None:
    with serve() as first:
        text = first.wait_for("curl")
        port = re.search(r"curl -s http://127.0.0.1:(\d+)/", text)
        assert port is not None
        with serve("--port", port[1]) as second:
            assert second.end() == 1
            assert second.text() == f"ampd: frontend.port: 127.0.0.1:{port[1]} is in use; choose another, or 0 for a free one\n"
