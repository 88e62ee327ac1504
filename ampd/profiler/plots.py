"""Plots of a profile as PNG and SVG: points against pieces, residuals, and the share of KV transfers in a trace.

Needs the optional extra `plots` (matplotlib).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ampd.bench.plot_style import STYLES, log_axis, print_style, save_figure
from ampd.cost_model import Profile
from ampd.profiler.curves import Curve, curves
from ampd.profiler.groups import Group, group_points
from ampd.profiler.plot_share import share_figure
from ampd.profiler.report import about
from ampd.profiler.trace_share import KvShare

_LABELS = {
    "l_incr": "new tokens l_incr", "batch": "sequences in the batch", "chunk": "prefilled tokens of the step",
    "tokens": "tokens moved",
}  # fmt: skip


def draw_profile(profile: Profile, shares: Sequence[KvShare], folder: Path) -> list[Path]:
    """Draw every function that has points, and every share, into `folder`; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    with print_style():
        for curve in curves(profile):
            if len(curve.seconds):
                drawn += save_figure(_fit_figure(curve, profile), folder / _slug(curve.title, curve.theta))
        for share in shares:
            drawn += save_figure(share_figure(share, profile), folder / _slug("T_kv over T_pre", str(share.theta)))
    return drawn


def _fit_figure(curve: Curve, profile: Profile) -> Figure:
    figure = Figure(figsize=(6.4, 6.0), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    groups, rest = group_points(curve, len(STYLES))
    _fit_panel(upper, curve, groups, profile.meta.source)
    _residual_panel(lower, curve, groups, rest, profile.meta.source)
    figure.suptitle(f"{curve.title}, theta {curve.theta}: {about(profile)}", fontsize=9, x=0.01, ha="left", wrap=True)
    return figure


def _fit_panel(axes: Axes, curve: Curve, groups: Sequence[Group], source: str) -> None:
    for group, style in zip(groups, STYLES, strict=False):
        args, xs = group.line(curve)
        measured = curve.seconds[group.rows] * 1e3
        axes.plot(xs, curve.predicted(args) * 1e3, color=style.color, linestyle=style.line, linewidth=1.2)
        axes.plot(group.x(curve), measured, **style.mark)
        axes.plot([], [], **{**style.mark, "linestyle": style.line}, label=group.label)
    log_axis(axes, "x", 2)
    log_axis(axes, "y", 10)
    _mark_breaks(axes, curve)
    axes.set_ylabel("time (ms)")
    pieces = "\ndotted: pieces meet" if curve.breaks else ""
    axes.legend(title=f"marks: {source}, lines: fitted{pieces}", title_fontsize=8, alignment="left", loc="best", handlelength=3.5)


def _residual_panel(axes: Axes, curve: Curve, groups: Sequence[Group], rest: NDArray[np.intp], source: str) -> None:
    residuals = 100 * curve.residuals()
    x = curve.args[:, list(curve.spans).index(curve.along)]
    if len(rest):
        axes.plot(x[rest], residuals[rest], color="0.6", marker="x", linestyle="none", markersize=4, label="other points")
    for group, style in zip(groups, STYLES, strict=False):
        axes.plot(x[group.rows], residuals[group.rows], **style.mark)
    axes.axhline(0, color="black", linewidth=0.8)
    p95 = 100 * curve.error.heldout_p95
    if p95:
        axes.axhline(p95, color="black", linewidth=0.8, linestyle=(0, (4, 3)), label=f"held-out p95: ±{p95:.1f} %")
        axes.axhline(-p95, color="black", linewidth=0.8, linestyle=(0, (4, 3)))
    _mark_breaks(axes, curve, named=False)
    axes.set_ylabel(f"fitted / {source} - 1 (%)")
    axes.set_xlabel(_LABELS[curve.along])
    axes.margins(y=0.15)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 0.98), ncols=2)


def _mark_breaks(axes: Axes, curve: Curve, *, named: bool = True) -> None:
    for at in curve.breaks:
        axes.axvline(at, color="0.4", linewidth=0.8, linestyle=":")
        if named:
            axes.annotate(f"{at:,}", (at, 1), xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
                          ha="center", fontsize=7, color="0.3")  # fmt: skip


def _slug(title: str, theta: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", f"{title} theta {theta}".lower()).strip("-")
