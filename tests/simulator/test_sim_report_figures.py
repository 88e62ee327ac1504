"""The figures of `ampd sim report`: the data on their axes, and their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from ampd.errors import ConfigError
from ampd.simulator.results.report import draw_report, figures, load_rows
from ampd.simulator.results.report_rows import Row, fold_seeds, grid_goodput, rows_csv
from ampd.simulator.results.report_style import best_deployments, pick_rate

# Attainment of each policy at 1, 2 and 3 sessions/s.
SHARES = {"predictive": (1.0, 0.98, 0.91), "paper": (0.99, 0.7, 0.2), "dynamo_read": (0.95, 0.92, 0.1)}


def row(policy: str, rate: float, attainment: float, **more: Any) -> Row:
    names = {"hardware": "H200", "model": "llama", "trace": "gaia", "deployment": "D:<TP=4,DP=2>"}
    known = {
        "attainment_low": attainment - 0.02, "attainment_high": attainment + 0.01, "goodput": 2.0, "bound": 3.5,
        "ttft_mean_s": 0.6, "ttft_p95_s": 1.1, "ttft_queue_s": 0.1, "ttft_transfer_s": 0.2, "ttft_compute_s": 0.3,
        "itl_mean_s": 0.02, "itl_p95_s": 0.025, "ttft_target_s": 1.0, "itl_target_s": 0.03,
        "share_local": 0.25, "share_deflected": 0.15, "share_remote": 0.6,
    }  # fmt: skip
    return Row(policy=policy, rate=rate, attainment=attainment, **(names | known | more))


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    made = [row(policy, rate + 1.0, share) for policy, shares in SHARES.items() for rate, share in enumerate(shares)]
    made += [row("paper", 2.0, 0.5, trace="toolbench"), row("paper", 2.0, 0.1, deployment="worse", goodput=1.0)]
    made += [row("paper", 2.0, share, study="ablation", variant=variant)
             for variant, share in (("both", 0.9), ("none", 0.2), ("routing", 0.6), ("reordering", 0.3))]  # fmt: skip
    made += [row("paper", 2.0, 0.5 + value / 10, study="sensitivity", parameter=parameter, value=value)
             for parameter, values in (("alpha", (0.9, 0.7)), ("w", (2.0, 3.0, 5.0))) for value in values]  # fmt: skip
    return made


@pytest.fixture(scope="module")
def drawn(rows: list[Row]) -> dict[str, Figure]:
    return figures(rows)


def lines(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines if line.get_gid()}  # type: ignore[arg-type]


def heights(axes: Axes) -> dict[str, list[float]]:
    return {str(bars.get_label()): [patch.get_height() for patch in bars] for bars in axes.containers if hasattr(bars, "patches")}


def test_each_kind_of_rows_has_its_figure(drawn: dict[str, Figure]) -> None:
    assert set(drawn) == {"attainment-h200", "ablation-h200", "sensitivity-h200", "goodput-h200-llama", "breakdown-h200-llama",
                          "paths-h200-llama"}  # fmt: skip


def test_attainment_is_drawn_against_the_rate_with_its_band(drawn: dict[str, Figure]) -> None:
    gaia, toolbench = drawn["attainment-h200"].axes
    assert gaia.get_title() == "llama, gaia"
    seen = lines(gaia)
    for policy, shares in SHARES.items():
        assert seen[policy] == ([1.0, 2.0, 3.0], [pytest.approx(100 * share) for share in shares])
    assert seen["upper bound"][0] == [3.5, 3.5]
    band = next(c for c in gaia.collections if c.get_gid() == "paper band").get_paths()[0].vertices
    at_two = band[np.isclose(band[:, 0], 2.0), 1]
    assert (at_two.min(), at_two.max()) == (pytest.approx(68.0), pytest.approx(71.0))
    assert lines(toolbench)["paper"] == ([2.0], [50.0])


def test_policies_are_drawn_alike_in_all_panels_and_unlike_each_other(drawn: dict[str, Figure]) -> None:
    gaia, toolbench = drawn["attainment-h200"].axes
    looks = {line.get_label(): (line.get_color(), line.get_marker(), line.get_linestyle()) for line in gaia.lines if line.get_gid()}
    assert len(set(looks.values())) == len(looks)
    paper = next(line for line in toolbench.lines if line.get_label() == "paper")
    assert (paper.get_color(), paper.get_marker(), paper.get_linestyle()) == looks["paper"]


def test_the_breakdown_stacks_the_parts_of_ttft(drawn: dict[str, Figure]) -> None:
    ttft, _, itl, _ = drawn["breakdown-h200-llama"].axes
    # The highest rate at which the best policy attains 90 %; every policy has a row there.
    assert ttft.get_title() == "llama\ngaia\n3 sessions/s"
    for name, seconds in (("waiting", 0.1), ("KV transfer", 0.2), ("prefill and rest", 0.3)):
        assert heights(ttft)[name] == pytest.approx([seconds] * 3)
    tops = [bars.patches[0].get_y() + bars.patches[0].get_height() for bars in ttft.containers if hasattr(bars, "patches")]
    assert tops == [pytest.approx(0.1), pytest.approx(0.3), pytest.approx(0.6)]
    assert lines(ttft)["P95"][1] == [1.1] * 3
    assert lines(ttft)["target"][1] == [1.0, 1.0]
    assert heights(itl) == {"_ITL": [pytest.approx(20.0)] * 3}
    assert [label.get_text() for label in itl.get_xticklabels()] == ["predictive", "paper", "dynamo_read"]


def test_the_ablation_has_a_bar_for_each_variant(drawn: dict[str, Figure]) -> None:
    (axes,) = drawn["ablation-h200"].axes
    seen = heights(axes)
    assert {name: values for name, values in seen.items() if name in ("neither", "routing only", "reordering only", "both")} == {
        "neither": [pytest.approx(20.0)], "routing only": [pytest.approx(60.0)], "reordering only": [pytest.approx(30.0)],
        "both": [pytest.approx(90.0)],
    }  # fmt: skip


def test_the_paths_fill_all_rounds_and_goodput_has_its_bound(drawn: dict[str, Figure]) -> None:
    gaia, _ = drawn["paths-h200-llama"].axes
    seen = heights(gaia)
    assert seen["local"] == [pytest.approx(25.0)] * 3
    assert np.sum(list(seen.values()), axis=0) == pytest.approx([100.0] * 3)
    (goodput,) = drawn["goodput-h200-llama"].axes
    assert heights(goodput)["predictive"] == [2.0]
    bounds = [c.get_segments()[0][0][1] for c in goodput.collections if c.get_gid() == "upper bound"]  # type: ignore[attr-defined]
    assert bounds == [3.5, 3.5]


def test_sensitivity_has_a_panel_for_each_parameter(drawn: dict[str, Figure]) -> None:
    alpha, w = drawn["sensitivity-h200"].axes
    assert lines(alpha)["llama, gaia: 2/s"] == ([0.7, 0.9], [pytest.approx(57.0), pytest.approx(59.0)])
    assert lines(w)["llama, gaia: 2/s"][0] == [2.0, 3.0, 5.0]


def test_parameters_may_be_of_different_policies() -> None:
    varied = [row(policy, 2.0, 0.9, study="sensitivity", parameter=parameter, value=value)
              for policy, parameter in (("paper", "alpha"), ("predictive", "cost_error"), ("paper", "cost_error"))
              for value in (0.1, 0.2)]  # fmt: skip
    alpha, error = figures(varied)["sensitivity-h200"].axes
    assert set(lines(alpha)) == {"llama, gaia, paper: 2/s"}
    assert set(lines(error)) == {"llama, gaia, paper: 2/s", "llama, gaia, predictive: 2/s"}
    looks = {axes: next(line.get_color() for line in axes.lines if "paper" in str(line.get_label())) for axes in (alpha, error)}
    assert looks[alpha] == looks[error]


def test_a_policy_stands_for_its_best_deployment(rows: list[Row]) -> None:
    plain = [r for r in rows if r.study == "rates"]
    assert {r.deployment for r in best_deployments(plain)} == {"D:<TP=4,DP=2>"}
    worse = [r for r in plain if r.deployment == "worse"]
    assert best_deployments(worse) == worse


def test_the_rate_of_bars_can_be_chosen(rows: list[Row]) -> None:
    gaia = [r for r in rows if r.study == "rates" and r.trace == "gaia"]
    assert (pick_rate(gaia, None), pick_rate(gaia, 1.4), pick_rate(gaia, 99.0)) == (3.0, 1.0, 3.0)
    assert pick_rate([r for r in gaia if r.policy == "paper" and r.rate > 1], None) == 2.0


def test_files_are_written_large_enough_for_print_and_alike_each_time(rows: list[Row], tmp_path: Path) -> None:
    files = draw_report(rows, tmp_path / "new" / "figures")
    assert {file.suffix for file in files} == {".png", ".svg"}
    assert len(files) == 12
    for file in files:
        if file.suffix == ".png":
            with Image.open(file) as image:
                assert image.width >= 800
                grey = np.asarray(image.convert("L"))
            assert 0.005 < (grey < 160).mean() < 0.7  # dark ink on paper, neither empty nor filled
    svg = tmp_path / "new" / "figures" / "attainment-h200.svg"
    assert "rounds attained (%)" in svg.read_text()
    again = draw_report([r for r in rows if r.study == "sensitivity"], tmp_path / "again")
    written = {file.name: file.read_bytes() for file in files}
    assert [file.read_bytes() == written[file.name] for file in again] == [True, True]


def test_rows_of_others_are_read_though_they_say_less_and_more(tmp_path: Path) -> None:
    least = {
        "hardware": "H20",
        "model": "m",
        "trace": "t",
        "policy": "p",
        "deployment": "d",
        "goodput": 1.5,
        "rate": 2,
        "attainment": 0.9,
    }
    file = tmp_path / "paper.json"
    file.write_text(json.dumps({"rows": [least | {"something": [1]}], "more": 1}))
    (read,) = load_rows(file)
    assert (read.rate, read.attainment, read.ttft_mean_s) == (2.0, 0.9, None)
    assert set(figures([read])) == {"attainment-h20", "goodput-h20-m"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "no such file"),
        ("{", "no results (Input data was truncated)"),
        ('{"rows": []}', "rows is empty"),
        ('{"rows": [{"hardware": "H20"}]}', "missing required field `model`"),
        ('{"rows": [{"hardware": "H20", "model": 3}]}', "Expected `str`, got `int` - at `$.rows[0].model`"),
    ],
)
def test_results_that_are_none_are_refused_in_one_line(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "result.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_rows(file)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_seeds_are_folded_to_means_and_an_interval() -> None:
    one = fold_seeds([{"attainment": 0.9, "rounds": 10, "itl_p95_s": None}, {"attainment": 0.8, "rounds": 20, "itl_p95_s": 0.1}])
    assert (one["seeds"], one["attainment"], one["rounds"], one["itl_p95_s"]) == (2, pytest.approx(0.85), 15.0, 0.1)
    assert one["attainment_low"] == pytest.approx(0.85 - 12.7062 * 0.05, abs=1e-4)
    assert one["attainment_high"] == 1.0
    assert fold_seeds([{"attainment": 0.9}])["attainment_low"] is None


def test_goodput_of_a_grid_needs_attained_and_unstarved_rounds() -> None:
    grid = [{"rate": rate, "attainment": share, "very_late": late}
            for rate, share, late in ((1.0, 1.0, 0.0), (2.0, 0.9, 0.01), (3.0, 0.95, 0.02), (4.0, 0.89, 0.0))]  # fmt: skip
    assert grid_goodput(grid) == 2.0
    assert grid_goodput(grid[2:]) == 0.0


def test_the_csv_has_the_columns_of_all_rows() -> None:
    assert rows_csv([{"a": 1, "b": None}, {"a": 0.5, "c": "x,y"}]) == 'a,b,c\n1,,\n0.5,,"x,y"\n'
