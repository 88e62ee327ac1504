"""The paper's experiments end to end, in small: rows, the journal, processes, studies, the table."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from ampd.errors import ConfigError
from ampd.simulator.experiments import paper
from ampd.simulator.experiments.deployments import enumerate_deployments, neighbours, parse_deployment
from ampd.simulator.experiments.goodput import Length
from ampd.simulator.experiments.paper_cell import Scene, candidates, scene_of
from ampd.simulator.experiments.paper_grid import CELLS, DEFAULT, EFFORTS, ENTRANTS, PAPER, Cell, Effort
from ampd.simulator.experiments.paper_journal import PaperJournal, code_digest, task_key
from ampd.simulator.experiments.paper_studies import Mistaken, Study, compute_study, studies_of
from ampd.simulator.experiments.paper_table import best_rows, geometric_mean, judge_cell, render_table
from ampd.simulator.results.report import load_rows
from tests.simulator.sim_core_costs import HandCosts

PROFILES = Path("configs/profiles")
CELL = Cell("h200", "llama-3.1-70b", "toolbench")
TINY = Effort("quick", (CELL,), 2, 2, 0, Length(60, 0.1), Length(150, 2.5), 8, Length(60, 0.1))


@pytest.fixture(scope="module")
def scene() -> Scene:
    return scene_of(CELL, PROFILES)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "quick", TINY)


def row(policy: str, goodput: float, *, low: float | None = None, high: float | None = None, trace: str = "gaia") -> dict[str, Any]:
    return {
        "hardware": "h20", "model": "m", "trace": trace, "policy": policy, "deployment": "D:<TP=4,DP=2>", "goodput": goodput,
        "goodput_low": low, "goodput_high": high, "bound": 10.0,
        "variant_number": 0, "best": True, "effort": "full", "rate": goodput, "attainment": 0.9,
    }  # fmt: skip


# ---- the grid


def test_the_grid_is_the_papers() -> None:
    assert len(CELLS) == 2 * 3 * 4
    assert {c.trace: c.gpus for c in CELLS} == {"toolbench": 8, "hotpotqa": 8, "dureader": 16, "gaia": 32}
    assert all((PROFILES / c.profile).is_file() for c in CELLS)
    assert {"paper", "dynamo_recompute", "dynamo_cache", "dynamo_read", "conditional_disagg", "ppd", "prefix_decider", "vllm",
            "continuum", "local_only"} == {e.name for e in ENTRANTS} - {DEFAULT}  # fmt: skip


def test_every_policy_gets_as_many_candidates_as_there_are_and_variants_share_them(scene: Scene) -> None:
    for entrant in ENTRANTS:
        found = candidates(scene, entrant, 6)
        assert 0 < len(found) <= 6
        assert len({(str(d), repr(v)) for d, v in found}) == len(found)
        for deployment, variant in found:
            made = scene.setup(entrant, deployment, variant)
            assert made.gpus == CELL.gpus
            assert (made.ttft_s, made.itl_s) == (scene.targets.ttft_s, scene.targets.itl_s)


def test_neighbours_differ_by_a_split_or_by_a_degree() -> None:
    every = enumerate_deployments([2, 4, 8], 16)
    found = {str(d) for d in neighbours(parse_deployment("P:<TP=4,DP=2> D:<TP=4,DP=2>"), every)}
    assert found == {
        "P:<TP=4,DP=1> D:<TP=4,DP=3>", "P:<TP=4,DP=3> D:<TP=4,DP=1>", "P:<TP=2,DP=4> D:<TP=4,DP=2>",
        "P:<TP=8,DP=1> D:<TP=4,DP=2>", "P:<TP=4,DP=2> D:<TP=2,DP=4>", "P:<TP=4,DP=2> D:<TP=8,DP=1>",
    }  # fmt: skip
    assert {str(d) for d in neighbours(parse_deployment("D:<TP=4,DP=4>"), every)} == {"D:<TP=2,DP=8>", "D:<TP=8,DP=2>"}


def test_a_variant_sets_what_it_names(scene: Scene) -> None:
    entrant = next(e for e in ENTRANTS if e.name == "vllm")
    deployment = parse_deployment("D:<TP=4,DP=2>")
    assert scene.setup(entrant, deployment, {"batched_tokens": 1024}).batched_tokens == 1024
    made = scene.setup(next(e for e in ENTRANTS if e.name == PAPER), deployment, {"alpha": 0.5, "reorder": {"window": 5}})
    assert (made.policy.alpha, made.policy.reorder.window, made.policy.name) == (0.5, 5, "paper")


# ---- from tasks to results


@pytest.mark.usefixtures("tiny")
def test_results_are_the_same_bytes_for_any_number_of_processes_and_go_on_from_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--quick", "--cell", "h200 llama-3.1-70b toolbench", "--policy", "vllm", "--policy", "local_only", "--no-studies",
                 "--no-figures"]  # fmt: skip
    one = tmp_path / "one.json"
    result = CliRunner().invoke(paper.main, [*arguments, "--jobs", "1", "--out", str(one)])
    assert result.exit_code == 0, result.output
    first = one.read_bytes()
    rows = msgspec.json.decode(first)["rows"]
    assert {r["policy"] for r in rows} == {"vllm", "local_only"}
    for r in best_rows(rows):
        assert r["effort"] == "quick"
        assert 0 < r["goodput"] <= r["bound"]
        assert r["rate"] == r["goodput"]
        assert r["attainment"] >= 0.9
    assert [r.policy for r in load_rows(one)] == [r["policy"] for r in rows]

    two = tmp_path / "two.json"
    result = CliRunner().invoke(paper.main, [*arguments, "--jobs", "2", "--out", str(two)])
    assert result.exit_code == 0, result.output
    assert two.read_bytes() == first

    def never(task: paper.Task) -> list[dict[str, Any]]:
        raise AssertionError(f"computed again: {task}")

    monkeypatch.setattr(paper, "compute", never)
    again = CliRunner().invoke(paper.main, [*arguments, "--out", str(one)])
    assert again.exit_code == 0, again.output
    assert one.read_bytes() == first


def test_the_journal_drops_what_a_kill_cut_short_and_keys_tell_tasks_apart(tmp_path: Path) -> None:
    path = tmp_path / "p.journal"
    journal = PaperJournal(path)
    journal.add("a", [row("paper", 1.0)])
    journal.add("b", [])
    path.write_bytes(path.read_bytes()[:-3])
    assert PaperJournal(path).done == {"a": [row("paper", 1.0)]}
    assert PaperJournal(path, fresh=True).done == {}
    keys = {task_key(code, task, TINY) for code in ("x", "y") for task in (CELL, replace(CELL, trace="gaia"))}
    assert len(keys) == 4
    assert code_digest([PROFILES / CELL.profile]) != code_digest([PROFILES / "qwen3-32b-h20.json"])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--cell", "h100"], "--cell 'h100': no such cell; words are of dureader, gaia"),
        (["--policy", "magic"], "--policy 'magic': unknown; choose of predictive, paper"),
        (["--profiles", "nowhere", "--no-studies"], "no such file"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, arguments: list[str], line: str) -> None:
    result = CliRunner().invoke(paper.main, ["--quick", "--jobs", "1", "--out", str(tmp_path / "r.json"), *arguments])
    assert result.exit_code == 2
    assert line in result.output
    assert len(result.output.splitlines()) == 1


# ---- studies


def test_studies_are_made_of_the_grids_best_rows() -> None:
    rows = [row(e.name, 2.0) | {"hardware": h, "model": "llama-3.1-70b", "trace": t} for e in ENTRANTS for h in ("h200", "h20")
            for t in ("gaia", "toolbench")]  # fmt: skip
    found = studies_of(rows, ["llama-3.1-70b"])
    kinds = {(s.kind, s.cell.hardware, s.cell.trace) for s in found}
    assert ("ablation", "h200", "gaia") in kinds
    assert ("ablation", "h200", "toolbench") not in kinds
    assert {s.parameter for s in found if s.kind == "sensitivity"} == {"alpha", "beta", "w", "window_s", "margin"}
    assert {s.cell.hardware for s in found if s.kind == "bursty"} == {"h200"}
    assert studies_of([r | {"goodput": 0.0} for r in rows], ["llama-3.1-70b"]) == []


@pytest.mark.parametrize(
    ("kind", "parameter", "value", "rows"),
    [
        ("curve", "", 2.5, 6),
        ("ablation", "", 0.0, 12),
        ("sensitivity", "w", 2.0, 1),
        ("cost_error", "cost_error", 0.1, 1),
        ("bursty", "arrival_cv", 2.0, 1),
    ],
)
def test_a_study_has_its_rows(scene: Scene, kind: str, parameter: str, value: float, rows: int) -> None:
    effort = replace(TINY, final=Length(60, 0.1), resolution=16)
    found = compute_study(scene, Study(kind, CELL, PAPER, "P:<TP=4,DP=1> D:<TP=4,DP=1>", 0, 3.0, parameter, value), effort)
    assert len(found) == rows
    assert {r["study"] for r in found} == {{"ablation": "ablation", "curve": "rates"}.get(kind, "sensitivity")}
    if kind == "ablation":
        assert {r["variant"] for r in found} == {"none", "routing", "reordering", "both"}
        remote = [r["share_remote"] for r in found if r["variant"] in ("none", "reordering")]
        assert remote == [1.0] * 6
    elif kind == "curve":
        assert {r["goodput"] for r in found} == {2.5}
        assert [r["rate"] for r in found] == sorted(r["rate"] for r in found)
    else:
        assert (found[0]["parameter"], found[0]["value"]) == (parameter, value)


def test_a_mistaken_cost_model_errs_by_its_factors() -> None:
    wrong, right = Mistaken(HandCosts(moved_s=1.0), 1.1, 0.9, 1.2, 0.8), HandCosts(moved_s=1.0)
    assert wrong.t_pre(10, 20, 1) == pytest.approx(1.1 * right.t_pre(10, 20, 1))
    assert wrong.t_dec(3, 20, 1) == pytest.approx(0.9 * right.t_dec(3, 20, 1))
    assert wrong.t_mixed(3, 20, 5, 1) == pytest.approx(1.2 * right.t_mixed(3, 20, 5, 1))
    assert wrong.t_kv(7, 1, 1, "history") == pytest.approx(0.8 * right.t_kv(7, 1, 1, "history"))


# ---- the table


def test_a_cell_is_judged_by_the_best_of_the_others_within_both_intervals() -> None:
    own, other = row(DEFAULT, 2.0, low=1.9, high=2.1), row("vllm", 2.1, low=2.0, high=2.2)
    policies = {r["policy"]: r for r in (own, other, row(PAPER, 1.0), row("dynamo_read", 1.6), row("dynamo_cache", 0.5))}
    verdict = judge_cell(("h20", "m", "gaia"), policies)
    assert (verdict.over_paper, verdict.over_dynamo, verdict.rival) == (2.0, 1.25, "vllm")
    assert verdict.over_rival == pytest.approx(2.0 / 2.1)
    assert verdict.ahead
    assert verdict.room == 5.0
    far = judge_cell(("h20", "m", "gaia"), policies | {"vllm": row("vllm", 2.4, low=2.3, high=2.5)})
    assert not far.ahead
    assert not judge_cell(("h20", "m", "gaia"), policies | {"vllm": row("vllm", 2.01), DEFAULT: row(DEFAULT, 2.0)}).ahead


def test_ratios_to_nothing_are_left_out_of_the_mean_and_said() -> None:
    assert geometric_mean([2.0, 8.0, math.inf, math.nan]) == pytest.approx(4.0)
    assert math.isnan(geometric_mean([math.inf]))
    rows = [row(DEFAULT, 3.0), row(PAPER, 2.0), row(DEFAULT, 1.0, trace="dureader"), row(PAPER, 0.0, trace="dureader")]
    text = render_table([*rows, row("vllm", 9.9) | {"best": False}])
    assert "vllm" not in text
    assert (
        "over paper: geometric mean 1.50 (1 cells without goodput of paper left out), promised 1.4: yes; cells below 1.2: 0 of 2"
        in text
    )
    assert "QUICK" not in text
    assert "QUICK" in render_table([r | {"effort": "quick"} for r in rows])


def test_an_unknown_policy_or_cell_is_refused() -> None:
    assert paper.chosen_cells(["gaia h20"]) == [c for c in CELLS if c.trace == "gaia" and c.hardware == "h20"]
    with pytest.raises(ConfigError):
        paper.chosen_cells(["gaia h100"])
    assert paper.chosen_policies(["vllm", "paper"]) == ["paper", "vllm"]
