"""`ampd sim run` on trace files: their own times or a rate, and what it refuses of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sim_graphs import write_graph

from ampd.cli.main import main
from ampd.simulator.commands.workload import Workload


def session(name: str, arrives_s: float | None = None, **first: Any) -> dict[str, Any]:
    """Two rounds, the first as given."""
    rounds = [{"prompt": 600, "history": 0, "output": 20} | first, {"prompt": 900, "history": 600, "output": 20, "gap_s": 1.5}]
    return {"session": name, "rounds": rounds} | ({} if arrives_s is None else {"arrives_s": arrives_s})


def written(folder: Path, *sessions: dict[str, Any]) -> str:
    path = folder / "recorded.jsonl"
    path.write_text("".join(json.dumps(s) + "\n" for s in sessions))
    return str(path)


def ampd(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = 0
    try:
        main(["sim", "run", *args])
    except SystemExit as e:
        code = int(e.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_a_file_is_served_once_at_its_own_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = written(tmp_path, session("a", 100.0), session("b", 107.0))
    code, out, _ = ampd(capsys, str(write_graph(tmp_path)), "--trace", trace, "--csv", str(tmp_path / "rounds.csv"), "--json", "-")
    seen = json.loads(out)
    assert (code, seen["trace"], seen["rate"], seen["window_s"]) == (0, "recorded", None, [0.0, None])
    assert (seen["metrics"]["rounds"], seen["metrics"]["sessions"]) == (4, 2)
    rows = [line.split(",") for line in (tmp_path / "rounds.csv").read_text().splitlines()[1:]]
    assert [(row[0], row[1]) for row in rows] == [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")]
    assert (float(rows[0][4]), float(rows[2][4])) == (0.0, 7.0)
    # The second round arrives its gap after the end of the first.
    assert float(rows[1][4]) == pytest.approx(float(rows[0][8]) + 1.5, abs=1e-5)


def test_a_file_at_a_rate_is_repeated(tmp_path: Path) -> None:
    trace = written(tmp_path, *(session(str(i), float(i)) for i in range(5)))
    sessions, end_s = Workload(trace, rate=2.0, duration_s=100.0).sessions(1)
    assert end_s == 100.0
    assert 150 < len(sessions) < 250
    assert len({s.name for s in sessions}) == len(sessions)
    counted, end_s = Workload(trace, rate=2.0, rounds=60).sessions(1)
    assert sum(len(s.rounds) for s in counted) == 60
    assert counted[-1].arrives_s < end_s
    faster, _ = Workload(trace, rate=4.0, rounds=60).sessions(1)
    assert [s.arrives_s for s in faster] == pytest.approx([s.arrives_s / 2 for s in counted])


@pytest.mark.parametrize(
    ("sessions", "args", "words"),
    [
        ([session("a"), session("b", gap_s=-1.0)], ("--rate", "1"), "recorded.jsonl:2: rounds[0].gap_s: -1.0; "),
        ([session("a", output=0)], ("--rate", "1"), "recorded.jsonl:1: rounds[0].output: 0; "),
        ([session("a", prompt=0)], ("--rate", "1"), "recorded.jsonl:1: rounds[0].prompt: 0; "),
        ([session("a", prompt=2_000_000)], ("--rate", "1"), "do not fit into a decode worker's KV pool of 1181792"),
        ([session("a"), session("b")], (), "--rate is not given: the sessions of "),
        ([], ("--rate", "1"), "no sessions"),
        ([session("a")], ("--rate", "1", "--duration", "1e-9"), "--duration 1e-09: no session arrives within it"),
        ([session("a")], ("--rate", "0"), "--rate 0: must be above 0"),
    ],
)
def test_traces_that_mean_nothing_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sessions: list[dict[str, Any]], args: tuple[str, ...], words: str
) -> None:  # fmt: skip
    trace = written(tmp_path, *sessions)
    code, out, err = ampd(capsys, str(write_graph(tmp_path)), "--trace", trace, *args)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
