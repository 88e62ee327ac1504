"""The paper's figures from rows of results, as PNG and SVG. Needs the optional extra `plots` (matplotlib)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from ampd.bench.plot_style import print_style, save_figure
from ampd.simulator.results.report_bars import ablation_figure, breakdown_figure, goodput_figure, paths_figure
from ampd.simulator.results.report_curves import rates_figure, sensitivity_figure
from ampd.simulator.results.report_rows import Row, load_rows
from ampd.simulator.results.report_style import policies_of

__all__ = ["draw_report", "figures", "load_rows"]


def draw_report(rows: Sequence[Row], folder: Path, rate: float | None = None) -> list[Path]:
    """Draw every figure that the rows hold data for into `folder`; returns the files.

    `rate`: what the figures with bars show, as near as there is; by default each panel's highest rate at which the best policy has
    90 % of its rounds attained.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    with print_style():
        for name, figure in figures(rows, rate).items():
            files += save_figure(figure, folder / name)
    return files


def figures(rows: Sequence[Row], rate: float | None = None) -> dict[str, Figure]:
    """By file name, as far as the rows go: for each hardware (and kind of targets) "attainment", "ablation" and "sensitivity", for
    each model on it "goodput", "breakdown" and "paths".
    """
    made: dict[str, Figure] = {}
    for hardware, targets in sorted({(row.hardware, row.targets) for row in rows}):
        own = [row for row in rows if (row.hardware, row.targets) == (hardware, targets)]
        made |= {f"{name}-{_slug(hardware, targets)}": figure for name, figure in _of_hardware(own, rate).items()}
        plain = [row for row in own if row.study == "rates"]
        for model in sorted({row.model for row in plain}):
            of_model = [row for row in plain if row.model == model]
            drawn = _of_model(of_model, policies_of(plain), rate)
            made |= {f"{name}-{_slug(hardware, model, targets)}": figure for name, figure in drawn.items()}
    return made


def _slug(*names: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", " ".join(names).lower()).strip("-")


def _of_hardware(rows: Sequence[Row], rate: float | None) -> dict[str, Figure]:
    made: dict[str, Figure] = {}
    if plain := [row for row in rows if row.study == "rates" and row.attainment is not None]:
        made["attainment"] = rates_figure(plain, policies_of(plain))
    if ablation := [row for row in rows if row.study == "ablation" and row.attainment is not None]:
        made["ablation"] = ablation_figure(ablation, rate)
    if varied := [row for row in rows if row.study == "sensitivity" and row.attainment is not None]:
        made["sensitivity"] = sensitivity_figure(varied, rate)
    return made


def _of_model(rows: Sequence[Row], policies: Sequence[str], rate: float | None) -> dict[str, Figure]:
    made: dict[str, Figure] = {}
    if any(row.goodput is not None for row in rows):
        made["goodput"] = goodput_figure(rows, policies)
    if timed := [row for row in rows if row.ttft_mean_s is not None]:
        made["breakdown"] = breakdown_figure(timed, rate)
    if routed := [row for row in rows if row.share_local is not None]:
        made["paths"] = paths_figure(routed, rate)
    return made
