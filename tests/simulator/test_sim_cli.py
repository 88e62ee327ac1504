"""`ampd sim run`, `sweep` and `report` as they are called, and what they refuse."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from sim_graphs import write_graph

from ampd.cli.main import main


def ampd(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    code = 0
    try:
        main(["sim", *args])
    except SystemExit as e:
        code = int(e.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def graph(tmp_path: Path) -> str:
    return str(write_graph(tmp_path))


def test_a_run_is_shown_and_written_and_the_same_bytes_each_time(
    graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    asked = ("run", graph, "--trace", "toolbench", "--rate", "6", "--rounds", "600", "--json")
    rounds = tmp_path / "rounds.csv"
    code, out, err = ampd(capsys, *asked, str(tmp_path / "a.json"), "--csv", str(rounds))
    assert (code, err) == (0, "")
    assert out.startswith("predictive, P:<TP=2,DP=1> D:<TP=4,DP=1>, llama-3.1-70b on h200_sxm, toolbench at 6 sessions/s\n")
    seen = json.loads((tmp_path / "a.json").read_text())
    assert f"counted  {seen['metrics']['rounds']} rounds" in out
    assert seen["metrics"]["attainment_low"] <= seen["metrics"]["attainment"] <= seen["metrics"]["attainment_high"]
    assert ampd(capsys, *asked, str(tmp_path / "b.json"), "--csv", str(tmp_path / "b.csv"))[0] == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert rounds.read_bytes() == (tmp_path / "b.csv").read_bytes()
    rows = list(csv.DictReader(rounds.open()))
    start = seen["window_s"][0]
    counted = [row for row in rows if start <= float(row["arrived_s"]) < seen["window_s"][1]]
    assert len(rows) >= 600
    assert len(counted) == seen["metrics"]["rounds"]
    assert sum(int(row["attained"]) for row in counted) / len(counted) == pytest.approx(seen["metrics"]["attainment"])


def test_another_seed_is_another_run(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (
        json.loads(
            ampd(capsys, "run", graph, "--trace", "toolbench", "--rate", "6", "--rounds", "100", "--seed", s, "--json", "-")[1]
        )
        for s in ("1", "2")
    )
    assert one["metrics"]["ttft_mean_s"] != two["metrics"]["ttft_mean_s"]


def test_settings_reach_the_policy_that_is_asked_for(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("run", graph, "--trace", "toolbench", "--rate", "2", "--rounds", "50", "--json", "-", "--set", "policy.alpha=0.5")
    plain = json.loads(ampd(capsys, *asked)[1])
    paper = json.loads(ampd(capsys, *asked, "--policy", "paper")[1])
    assert (plain["policy"], plain["policy_settings"]["alpha"]) == ("predictive", 0.5)
    assert (paper["policy"], paper["policy_settings"]["alpha"]) == ("paper", 0.5)
    assert paper["policy_settings"]["local_prefill"] == "exclusive"


def test_targets_by_rule_and_another_deployment(graph: str, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("run", graph, "--trace", "toolbench", "--rate", "2", "--rounds", "50", "--json", "-", "--targets", "tight",
             "--deployment", "D:<TP=8,DP=2>", "--policy", "vllm")  # fmt: skip
    seen = json.loads(ampd(capsys, *asked)[1])
    assert (seen["deployment"], seen["gpus"]) == ("D:<TP=8,DP=2>", 16)
    assert seen["ttft_target_s"] != 0.3


def test_a_sweep_and_its_report(graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result, table = tmp_path / "sweep.json", tmp_path / "sweep.csv"
    deployments = ("--deployment", "D:<TP=4,DP=1>", "--deployment", "P:<TP=4,DP=1> D:<TP=4,DP=1>")
    load = ("--trace", "toolbench", "--rates", "2:6:4", "--seeds", "1", "--rounds", "50")
    asked = ("sweep", graph, *load, "--policy", "paper", "--policy", "vllm", *deployments, "--jobs", "1")
    code, out, err = ampd(capsys, *asked, "--out", str(result), "--csv", str(table))
    assert (code, err) == (0, "")
    rows = json.loads(result.read_text())["rows"]
    # A colocated policy has no prefill workers.
    assert [(r["policy"], r["deployment"], r["rate"]) for r in rows] == [
        (policy, deployment, rate)
        for policy, deployment in (("paper", "D:<TP=4,DP=1>"), ("paper", "P:<TP=4,DP=1> D:<TP=4,DP=1>"), ("vllm", "D:<TP=4,DP=1>"))
        for rate in (2.0, 6.0)
    ]
    assert [float(row["attainment"]) for row in csv.DictReader(table.open())] == [r["attainment"] for r in rows]
    assert out.count("D:<TP=4,DP=1>") == 3
    code, out, err = ampd(capsys, "report", str(result), "--out", str(tmp_path / "figures"))
    assert (code, err) == (0, "")
    assert {Path(line).exists() for line in out.split()} == {True}
    assert str(tmp_path / "figures" / "attainment-h200-sxm.svg") in out.split()


LOAD = ("--trace", "toolbench", "--rate", "2")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--trace", "toolbench", "--rate", "0"), "--rate 0: must be above 0; give sessions a second, e.g. 2"),
        (("--trace", "toolbench", "--rate", "nan"), "--rate nan: must be above 0"),
        (("--trace", "toolbench"), "--rate is not given: trace 'toolbench' has no arrival times of its own"),
        (("--trace", "toolbnech", "--rate", "1"), "--trace 'toolbnech': no such file, and no generator; generators are toolbench"),
        ((*LOAD, "--duration", "-1"), "--duration -1: must be above 0; give seconds"),
        ((*LOAD, "--rounds", "0"), "--rounds 0: must be above 0; give a number of rounds"),
        ((*LOAD, "--rounds", "5", "--duration", "5"), "--duration and --rounds are both given"),
        ((*LOAD, "--duration", "1e-6"), "--duration 1e-06: no session arrives within it"),
        ((*LOAD, "--cv", "0"), "--cv 0: must be above 0; give 1 for Poisson"),
        ((*LOAD, "--warm-up", "-1"), "--warm-up -1: must be 0 or more seconds"),
        ((*LOAD, "--policy", "papper"), "--policy 'papper': there is no such policy; did you mean 'paper'? choose one of ampd, "),
        ((*LOAD, "--policy", "vllm"), "policy = 'vllm': its engines are colocated, but the deployment has prefill workers"),
        ((*LOAD, "--policy", "paper", "--set", "policy.alpha=-1"), "policy.alpha = -1"),
        ((*LOAD, "--set", "policy.alpa=1"), "unknown key policy.alpa"),
        ((*LOAD, "--deployment", "P2D4"), "deployment: 'P2D4' is not of the form"),
        ((*LOAD, "--deployment", "D:<TP=1,DP=8>"), "deployment D:<TP=1,DP=8>: a decode worker of TP=1 does not hold the model"),
        ((*LOAD, "--set", "workers.1.tensor_parallel=1"), "workers.1.tensor_parallel = 1: 1 x h200_sxm cannot hold llama-3.1-70b"),
        ((*LOAD, "--targets", "easy"), "--targets 'easy': choose one of tight, middle, loose"),
        ((*LOAD, "--set", "profile=null"), "profile is not set: the simulator takes every time from it"),
        ((*LOAD, "--set", "workers.1.engine=sim", "--set", "workers.0.engine=sim", "--set", "workers.1.sim.kv_tokens=512"),
         "do not fit into a decode worker's KV pool of 512; use a larger theta or leave"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_one_line_and_exit_code_2(
    graph: str, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], words: str
) -> None:  # fmt: skip
    code, out, err = ampd(capsys, "run", graph, *args)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("ampd: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--rates", "0,1"), "--rates '0,1': 0 is not above 0; give sessions a second"),
        (("--rates", "fast"), "--rates 'fast': expected rates as 0.5,1,2 or from:to:step"),
        (("--rates", "1:2:0"), "--rates '1:2:0': expected rates"),
        (("--rates", "3:2:1"), "--rates '3:2:1': no rate lies between both ends"),
        (("--rates", "1", "--seeds", "0"), "--seeds 0: must be at least 1"),
        (("--rates", "1", "--jobs", "0"), "--jobs 0: must be at least 1"),
        (("--rates", "1", "--policy", "vllm"), "--policy 'vllm': its engines are colocated, but every deployment has prefill"),
        (("--rates", "1", "--policy", "none"), "--policy 'none': there is no such policy"),
        (("--rates", "1", "--vary", "alpha"), "--vary 'alpha': expected KEY=VALUE,VALUE"),
        (("--rates", "1", "--vary", "gamma=1", "--rounds", "20", "--jobs", "1"), "policy.gamma: there is no such key"),
        (("--rates", "1", "--deployment", "D:<TP=1,DP=1>"), "a decode worker of TP=1 does not hold the model"),
    ],
)  # fmt: skip
def test_a_sweep_refuses_in_one_line(
    graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], words: str
) -> None:  # fmt: skip
    code, out, err = ampd(capsys, "sweep", graph, "--trace", "toolbench", *args, "--out", str(tmp_path / "out.json"))
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out.json").exists()


def test_a_file_that_cannot_be_written_is_one_line(graph: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = str(tmp_path / "no" / "folder.json")
    code, _, err = ampd(capsys, "run", graph, *LOAD, "--rounds", "20", "--json", nowhere)
    assert (code, err) == (1, f"ampd: {nowhere}: cannot be written: No such file or directory\n")
    code, _, err = ampd(capsys, "sweep", graph, "--trace", "toolbench", "--rates", "1", "--out", nowhere)
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = ampd(capsys, "report", nowhere, "--out", str(tmp_path))
    assert (code, err.count("\n")) == (2, 1)
