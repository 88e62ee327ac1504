"""Figures with lines: attainment against rate, and sensitivity to the policy's parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampd.bench.plot_style import Style
from ampd.simulator.experiments.goodput import ATTAINED
from ampd.simulator.results.report_rows import Row
from ampd.simulator.results.report_style import (
    OWN,
    at_rate,
    best_deployments,
    by_policy,
    cells_of,
    pick_rate,
    policies_of,
    shared_legend,
    style_at,
)

_PARAMETERS = {
    "alpha": "alpha (share of the TTFT target)",
    "beta": "beta (share of the ITL target)",
    "w": "w (tasks reordered)",
    "window_s": "window of TTFT and ITL (s)",
    "arrival_cv": "variation of arrivals (1: Poisson)",
    "cost_error": "error of the cost functions",
}


def rates_figure(rows: Sequence[Row], policies: Sequence[str]) -> Figure:
    """Attainment against rate of one hardware's rows: a row of panels for each model, a column for each trace.

    A line is a policy on its best deployment, its band the 95 % confidence interval between seeds. Lines have the policy's name as
    their label and gid.
    """
    models, traces = sorted({row.model for row in rows}), sorted({row.trace for row in rows})
    figure = Figure(figsize=(max(4.0, 2.3 * len(traces)), 0.7 + 2.0 * len(models)), layout="constrained")
    panels = figure.subplots(len(models), len(traces), squeeze=False, sharey=True)
    for (_, model, trace), members in cells_of(best_deployments(rows)).items():
        axes = panels[models.index(model)][traces.index(trace)]
        for policy in policies_of(members):
            own = sorted((row for row in members if row.policy == policy), key=lambda row: row.rate)
            _curve(axes, [row.rate for row in own], own, policy, style_at(policies.index(policy)))
        _bound(axes, members)
        axes.set_title(f"{model}, {trace}")
    for empty in [axes for axes in panels.flat if not axes.has_data()]:
        empty.set_visible(False)
    for axes in panels.flat:
        _share_axis(axes)
    for axes in panels[:, 0]:
        axes.set_ylabel("rounds attained (%)")
    for axes in panels[-1]:
        axes.set_xlabel("sessions/s")
    shared_legend(figure, panels.flat)
    return figure


def _curve(axes: Axes, xs: Sequence[float], rows: Sequence[Row], label: str, style: Style) -> None:
    known = [(x, row) for x, row in zip(xs, rows, strict=True) if row.attainment is not None]
    axes.plot(
        [x for x, _ in known], [100 * (row.attainment or 0.0) for _, row in known], label=label, gid=label, color=style.color,
        linestyle=style.line, marker=style.marker, markersize=4, fillstyle="none",
        linewidth=2.0 if label == OWN else 1.1, zorder=3 if label == OWN else 2,
    )  # fmt: skip
    banded = [(x, row.attainment_low, row.attainment_high) for x, row in known
              if row.attainment_low is not None and row.attainment_high is not None]  # fmt: skip
    if banded:
        band_xs, lows, highs = zip(*banded, strict=True)
        axes.fill_between(
            band_xs,
            [100 * v for v in lows],
            [100 * v for v in highs],
            color=style.color,
            alpha=0.2,
            linewidth=0,
            gid=f"{label} band",
        )


def _bound(axes: Axes, rows: Sequence[Row]) -> None:
    """What the GPUs could serve at most, if that is within sight."""
    bounds = [row.bound for row in rows if row.bound is not None]
    if bounds and max(bounds) <= 1.3 * max(row.rate for row in rows):
        axes.axvline(max(bounds), color="0.3", linewidth=0.8, linestyle=(0, (1, 2)), label="upper bound", gid="upper bound")


def _share_axis(axes: Axes) -> None:
    axes.axhline(100 * ATTAINED, color="0.5", linewidth=0.6)
    axes.set_ylim(-3, 103)
    axes.set_yticks((0, 25, 50, 75, 100))


def sensitivity_figure(rows: Sequence[Row], rate: float | None = None) -> Figure:
    """Attainment against each parameter that was varied, a panel each; a line is a policy under a model and trace, at one rate."""
    parameters = [name for name in (*_PARAMETERS, *sorted({row.parameter for row in rows} - set(_PARAMETERS)))
                  if any(row.parameter == name for row in rows)]  # fmt: skip
    policies = policies_of(rows)
    names = list(by_policy(rows, policies))
    across = min(3, len(parameters))
    down = -(-len(parameters) // across)
    figure = Figure(figsize=(max(4.0, 2.5 * across), 0.7 + 2.2 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    panels = list(grid.flat)[: len(parameters)]
    for spare in list(grid.flat)[len(parameters) :]:
        spare.set_visible(False)
    for axes, parameter in zip(panels, parameters, strict=True):
        for name, members in by_policy([row for row in rows if row.parameter == parameter], policies).items():
            at = pick_rate(members, rate)
            own = sorted(at_rate(members, at), key=lambda row: row.value or 0.0)
            values = [math.nan if row.value is None else row.value for row in own]
            _curve(axes, values, own, f"{name}: {at:.3g}/s", style_at(names.index(name)))
        axes.set_xlabel(_PARAMETERS.get(parameter, parameter))
        axes.margins(y=0.15)
    lowest = min(100 * (row.attainment_low or row.attainment or 0.0) for row in rows)
    panels[0].set_ylim(min(80.0, lowest - 4), 103)
    for axes in grid[:, 0]:
        axes.set_ylabel("rounds attained (%)")
    shared_legend(figure, panels, 3.0)
    return figure
