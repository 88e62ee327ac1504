"""Sweeps: the same bytes however they were computed, and nothing computed twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from sim_graphs import graph_data, write_graph

from ampd.cli.main import main
from ampd.errors import ConfigError, SetupError
from ampd.simulator.commands.sweep import Sweep, Vary, lines_of, point_key, run_sweep
from ampd.simulator.commands.sweep_journal import open_sweep_journal

SWEEP = Sweep(
    graph=graph_data(),
    traces=("toolbench",),
    rates=(4.0, 12.0),
    pairs=(("paper", ""), ("dynamo_read", "")),
    seeds=(1, 2),
    rounds=150,
)
CODES = {"toolbench": "one", "gaia": "one"}


def run(sweep: Sweep, journal: Path, jobs: int = 1, codes: dict[str, str] = CODES) -> tuple[str, list[tuple[int, int]]]:
    """The document as text, and how much was known of how much as it went."""
    seen: list[tuple[int, int]] = []
    with open_sweep_journal(journal) as opened:
        document = run_sweep(sweep, codes, opened, jobs, lambda known, total: seen.append((known, total)))
    return json.dumps(document), seen


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    journal = tmp_path_factory.mktemp("sweep") / "journal"
    return run(SWEEP, journal)[0], journal


def test_the_number_of_processes_changes_no_byte(once: tuple[str, Path], tmp_path: Path) -> None:
    document, seen = run(SWEEP, tmp_path / "journal", jobs=3)
    assert document == once[0]
    assert seen == [(known, 9) for known in range(10)]


def test_a_second_run_computes_nothing_and_says_the_same(once: tuple[str, Path]) -> None:
    before = once[1].read_bytes()
    assert run(SWEEP, once[1]) == (once[0], [(9, 9)])
    assert once[1].read_bytes() == before


def test_rows_are_folded_in_order_with_their_goodput(once: tuple[str, Path]) -> None:
    rows = json.loads(once[0])["rows"]
    assert [(r["policy"], r["rate"]) for r in rows] == [(p, rate) for p in ("paper", "dynamo_read") for rate in (4.0, 12.0)]
    for row in rows:
        assert (row["hardware"], row["model"], row["trace"], row["seeds"]) == ("h200_sxm", "llama-3.1-70b", "toolbench", 2)
        assert (row["deployment"], row["gpus"]) == ("P:<TP=2,DP=1> D:<TP=4,DP=1>", 6)
        assert 0 <= row["attainment_low"] <= row["attainment"] <= row["attainment_high"] <= 1
        assert row["bound"] > 12
        assert row["warm_up_short"] == 1.0  # 150 rounds arrive in less than two lifetimes of a session
    paper = rows[:2]
    assert {row["goodput"] for row in paper} == {max((r["rate"] for r in paper if r["attainment"] >= 0.9), default=0.0)}
    assert rows[2]["share_remote"] == 1.0


def test_a_wider_sweep_computes_only_what_is_new(once: tuple[str, Path], tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.write_bytes(once[1].read_bytes())
    wider = replace(SWEEP, rates=(4.0, 8.0, 12.0))
    document, seen = run(wider, journal)
    assert seen == [(known, 13) for known in range(9, 14)]
    rows = {(r["policy"], r["rate"]): r["attainment"] for r in json.loads(document)["rows"]}
    assert {key: rows[key] for key in rows if key[1] != 8.0} == {
        (r["policy"], r["rate"]): r["attainment"] for r in json.loads(once[0])["rows"]
    }


@pytest.mark.parametrize(
    "changed",
    [
        replace(SWEEP, graph=graph_data(targets={"ttft_s": 0.2, "itl_s": 0.03})),
        replace(SWEEP, keys=(("alpha", 0.5),)),
        replace(SWEEP, rounds=151),
        replace(SWEEP, cv=2.0),
        replace(SWEEP, seeds=(3, 4)),
        replace(SWEEP, targets="tight"),
    ],
)
def test_what_decides_a_result_is_part_of_its_key(changed: Sweep) -> None:
    def keys(sweep: Sweep, code: str = "one") -> set[str]:
        return {point_key(point) for line in lines_of(sweep, {"toolbench": code}) for point in line.points}

    assert len(keys(SWEEP)) == 8
    assert keys(SWEEP) & keys(changed) == set()
    assert keys(SWEEP) & keys(SWEEP, "another") == set()
    assert keys(SWEEP) < keys(replace(SWEEP, seeds=(1, 2, 3)))


def test_a_line_that_was_cut_short_is_computed_again(once: tuple[str, Path], tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    whole = once[1].read_bytes()
    journal.write_bytes(whole[:-20])
    document, seen = run(SWEEP, journal)
    assert (document, seen) == (once[0], [(8, 9), (9, 9)])
    assert journal.read_bytes() == whole


def test_one_sweep_at_a_time_and_no_file_of_others(once: tuple[str, Path], tmp_path: Path) -> None:
    with open_sweep_journal(once[1]), pytest.raises(SetupError, match="another `ampd sim sweep` is writing it"):
        run(SWEEP, once[1])
    for text in ("precious", "precious\n", '{"key":"a"}\n'):
        other = tmp_path / "other"
        other.write_text(text)
        with pytest.raises(ConfigError, match="not the journal of an `ampd sim sweep`"):
            run(SWEEP, other)
        assert other.read_text() == text


def test_a_killed_sweep_goes_on_and_leaves_no_process(tmp_path: Path) -> None:
    graph = write_graph(tmp_path)
    out, journal = tmp_path / "out.json", tmp_path / "out.json.journal"
    asked = ["sim", "sweep", str(graph), "--trace", "toolbench", "--rates", "2,4,6,8,10,12", "--seeds", "2", "--rounds", "400",
             "--policy", "paper", "--jobs", "2"]  # fmt: skip
    code = "from ampd.cli.main import main; main()"
    sweep = subprocess.Popen([sys.executable, "-c", code, *asked, "--out", str(out)], stdout=subprocess.DEVNULL)
    while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
        assert sweep.poll() is None, "the sweep ended before it could be killed"
        time.sleep(0.01)
    children = psutil.Process(sweep.pid).children(recursive=True)
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.wait()
    assert len(children) >= 2
    assert psutil.wait_procs(children, timeout=10)[1] == []
    kept = journal.read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    assert not out.exists()

    subprocess.run([sys.executable, "-c", code, *asked, "--out", str(out)], check=True, stdout=subprocess.DEVNULL)
    assert journal.read_bytes().startswith(kept)
    assert 3 <= kept.count(b"\n") < journal.read_bytes().count(b"\n") == 13
    with pytest.raises(SystemExit) as ended:
        main([*asked[:-1], "1", "--out", str(tmp_path / "fresh.json")])
    assert ended.value.code == 0
    assert out.read_bytes() == (tmp_path / "fresh.json").read_bytes()


def test_studies_change_one_setting_each_and_are_not_of_the_peers() -> None:
    sweep = Sweep(graph=graph_data(), traces=("toolbench",), rates=(1.0,), pairs=(("paper", ""), ("ppd", "")), seeds=(1,),
                  vary=(Vary("alpha", (0.5, 0.7)), Vary("reorder.window", (4,))), ablation=True)  # fmt: skip
    lines = lines_of(sweep, CODES)
    seen = [(line.study.study, line.study.variant, line.study.parameter, line.study.value, dict(line.points[0].keys))
            for line in lines if line.policy == "paper"]  # fmt: skip
    assert seen == [
        ("rates", "", "", None, {}),
        ("ablation", "none", "", None, {"name": "dynamo", "reorder.name": "fcfs"}),
        ("ablation", "routing", "", None, {"reorder.name": "fcfs"}),
        ("ablation", "reordering", "", None, {"name": "dynamo"}),
        ("ablation", "both", "", None, {}),
        ("sensitivity", "alpha=0.5", "alpha", 0.5, {"alpha": 0.5}),
        ("sensitivity", "alpha=0.7", "alpha", 0.7, {"alpha": 0.7}),
        ("sensitivity", "w=4", "w", 4.0, {"reorder.window": 4}),
    ]
    assert [line.study.study for line in lines if line.policy == "ppd"] == ["rates"]
    # "Both" and the plain policy are one simulation.
    assert lines[4].points == lines[0].points
