"""A trace drawn for print: how lengths and gaps are distributed, and how contexts grow. Needs the extra `plots` (matplotlib)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator

from ampd.bench.plot_style import STYLES, log_axis, print_style
from ampd.bench.traces.stats import TraceStats, measure_trace
from ampd.errors import ConfigError
from ampd.simulator.types import Floats, TraceSession

_FEW = 10  # a round number that so few sessions reach says nothing of the others
_ABOVE: dict[str, Any] = {
    "loc": "lower left",
    "bbox_to_anchor": (-0.02, 0.98),
    "ncols": 2,
    "handlelength": 2.5,
    "columnspacing": 1.0,
}


def draw_trace(sessions: Sequence[TraceSession], title: str, file: Path) -> None:
    """Write one figure, its kind by the suffix: .png, .svg or .pdf. Raises ConfigError for another, or if it cannot be written."""
    if file.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--plot: {file}: a plot is .png, .svg or .pdf; give a file of such a name")
    stats = measure_trace(sessions)
    with print_style():
        figure = Figure(figsize=(7.2, 5.0), layout="constrained")
        panels = figure.subplots(2, 2).flat
        _distributions(panels[0], stats, ("prompt", "history", "new tokens", "output"), "tokens of a round")
        _distributions(panels[1], stats, ("new tokens a session", "output a session", "context at the end"), "tokens of a session")
        _gaps(panels[2], stats)
        _growth(panels[3], sessions)
        figure.suptitle(title, fontsize=9, x=0.01, ha="left", wrap=True)
        try:
            figure.savefig(file, dpi=200, metadata={"Date": None} if file.suffix == ".svg" else None)
        except OSError as e:
            raise ConfigError(f"--plot: {file}: cannot be written: {e.strerror}; give another file") from None


def _distributions(axes: Axes, stats: TraceStats, names: Sequence[str], label: str) -> None:
    for name, style in zip(names, STYLES, strict=False):
        values = stats.values[name]
        _cumulative(
            axes, values[values > 0], len(values), color=style.color, line=style.line, label=name.removesuffix(" a session")
        )
    log_axis(axes, "x", 10)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel(label)
    axes.set_ylabel("at or below (%)")
    axes.legend(**_ABOVE)


def _cumulative(axes: Axes, values: Floats, of: int, *, color: str, line: object, label: str) -> None:
    """Of `of` values those above 0: a logarithmic axis has no 0."""
    shares = 100 * (of - len(values) + np.arange(1, len(values) + 1)) / of
    axes.step(np.sort(values), shares, where="post", color=color, linestyle=line, linewidth=1.3, label=label)


def _gaps(axes: Axes, stats: TraceStats) -> None:
    gaps = stats.values["gap (s)"]
    axes.set_xlabel("gap before a round (s)")
    axes.set_ylabel("at or below (%)")
    if not (gaps > 0).any():
        axes.text(0.5, 0.5, "no gaps", ha="center", va="center", transform=axes.transAxes)
        return
    _cumulative(axes, gaps[gaps > 0], len(gaps), color=STYLES[0].color, line="-", label="gap")
    log_axis(axes, "x", 10)
    axes.xaxis.set_major_locator(LogLocator(base=10, numticks=6))
    axes.axvline(float(gaps.mean()), color="black", linewidth=0.8, linestyle=(0, (4, 3)), label=f"mean {gaps.mean():.2f} s")
    axes.legend(**_ABOVE)


def _growth(axes: Axes, sessions: Sequence[TraceSession]) -> None:
    """Prompts by round: of the sessions that have so many."""
    columns = [[p for p in column if p is not None] for column in zip_longest(*([r.prompt for r in s.rounds] for s in sessions))]
    enough = min(_FEW, len(sessions))
    columns = [column for column in columns if len(column) >= enough]
    low, middle, high = np.array([np.quantile(column, (0.1, 0.5, 0.9)) for column in columns]).T
    numbers = np.arange(1, len(columns) + 1)
    marker = STYLES[0].marker if len(columns) <= 12 else ""
    axes.fill_between(numbers, low, high, color="0.85", linewidth=0, label="10 to 90 % of the sessions")
    axes.plot(numbers, middle, color=STYLES[0].color, marker=marker, markersize=3.5, linewidth=1.3, label="median")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")
    axes.set_ylabel("prompt (tokens)")
    axes.legend(**_ABOVE)
