"""`ampd trace`: what it prints, draws and writes, and how it fails."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from ampd.bench.traces import SHAPES, generate, load_trace
from ampd.bench.traces.stats import measure_trace, stats_lines
from ampd.cli.main import main
from ampd.simulator.types import TraceRound, TraceSession


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


class Ampd:
    """The console script's entry point, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: str | Path) -> Done:
        with pytest.raises(SystemExit) as left:
            main(["trace", *map(str, args)])
        return Done(int(left.value.code or 0), *self._capsys.readouterr())


@pytest.fixture
def ampd(capsys: pytest.CaptureFixture[str]) -> Ampd:
    return Ampd(capsys)


def test_figures_are_right() -> None:
    two = [
        TraceSession("a", (TraceRound(100, 0, 10), TraceRound(200, 110, 20, 1.0, "search")), 0.0),
        TraceSession("b", (TraceRound(300, 0, 30), TraceRound(500, 330, 40, 3.0, "search"), TraceRound(600, 540, 50, 5.0)), 4.0),
    ]
    stats = measure_trace(two)
    rows = {row["name"]: row for row in stats.as_json()["rows"]}
    assert rows["rounds a session"]["mean"] == 2.5
    assert rows["prompt"] == {"name": "prompt", "mean": 340.0, "p50": 300.0, "p95": pytest.approx(580.0), "max": 600.0}
    assert rows["new tokens a session"]["max"] == 530.0
    assert rows["output a session"]["mean"] == 75.0
    assert rows["context at the end"]["max"] == 650.0
    assert rows["new tokens"]["mean"] == pytest.approx((100 + 90 + 300 + 170 + 60) / 5)
    assert rows["gap (s)"]["mean"] == 3.0
    assert stats.reuse == pytest.approx((110 + 330 + 540) / 1700)
    assert stats.rate == 0.25
    assert stats.tools == {"search": (pytest.approx(2 / 3), 2.0), "": (pytest.approx(1 / 3), 5.0)}
    assert stats_lines(stats)[0] == "2 sessions, 5 rounds, 0.25 sessions/s; 57.6 % of the prompt tokens are history"


def test_sessions_of_one_round_have_no_gaps() -> None:
    stats = measure_trace([TraceSession("a", (TraceRound(100, 0, 10),))])
    assert stats.as_json()["rows"][-1] == {"name": "gap (s)", "mean": None, "p50": None, "p95": None, "max": None}
    assert "no arrival times" in stats_lines(stats)[0]


def test_made_traces_can_be_shown_again(tmp_path: Path, ampd: Ampd) -> None:
    file = tmp_path / "t.jsonl"
    made = ampd("make", "gaia", "--sessions", "200", "--rate", "2", "--seed", "5", "--out", file)
    assert (made.returncode, made.stdout) == (0, "")
    assert "200 sessions" in made.stderr
    sessions = load_trace(file)
    assert [s.rounds for s in sessions] == [s.rounds for s in generate("gaia", 200, 5)]
    again = tmp_path / "again.jsonl"
    ampd("make", "gaia", "--sessions", "200", "--rate", "2", "--seed", "5", "--out", again)
    assert again.read_bytes() == file.read_bytes()

    shown = ampd("show", file, "--json", "-", "--plot", tmp_path / "t.svg")
    assert shown.returncode == 0, shown.stderr
    figures = json.loads(shown.stdout)
    assert figures["trace"] == "t.jsonl (rows)"
    assert figures["sessions"] == 200
    assert figures["sessions_per_s"] == pytest.approx(2.0, rel=0.3)
    assert "new tokens a session" in shown.stderr
    svg = (tmp_path / "t.svg").read_text()
    for words in ("tokens of a session", "gap before a round (s)", "prompt (tokens)"):
        assert words in svg


def test_a_name_is_drawn_and_shown(ampd: Ampd) -> None:
    shown = ampd("show", "dureader", "--sessions", "500", "--reading", "round")
    assert shown.returncode == 0, shown.stderr
    assert "dureader (generated, seed 0, lengths by round)" in shown.stdout
    assert "500 sessions, 2,000 rounds" in shown.stdout
    assert "retrieve 100 %" in shown.stdout


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("show", "nothing.jsonl"), "ampd: nothing.jsonl: no such file, and no generator; generators are toolbench, gaia"),
        (
            ("make", "gaia", "--sessions", "3", "--rate", "0", "--out", "x"),
            "ampd: rate: 0.0 is not above 0; give sessions a second",
        ),
        (("make", "gaia", "--sessions", "3", "--rate", "1", "--cv", "-1", "--out", "x"), "ampd: cv: -1.0 is not above 0"),
        (("make", "gaia", "--sessions", "3", "--rate", "1", "--out", "no/such/folder"), "ampd: no/such/folder: cannot be written"),
        (("show", "gaia", "--sessions", "3", "--plot", "x.jpg"), "ampd: --plot: x.jpg: a plot is .png, .svg or .pdf"),
    ],
)
def test_wrong_wishes_are_one_line_and_exit_code_2(args: tuple[str, ...], words: str, ampd: Ampd) -> None:
    failed = ampd(*args)
    assert failed.returncode == 2
    assert failed.stderr.splitlines()[-1].startswith(words)


def test_every_generator_is_in_the_help(ampd: Ampd) -> None:
    text = ampd("make", "--help").stdout
    assert [name for name in SHAPES if name not in text] == []
