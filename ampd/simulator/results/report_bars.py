"""Figures with bars: where latency goes, the ablation, which path rounds take, goodput."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampd.simulator.results.report_rows import Row
from ampd.simulator.results.report_style import (
    HATCHES,
    Cell,
    at_rate,
    best_deployments,
    by_policy,
    cells_of,
    pick_rate,
    policies_of,
    shared_legend,
    style_at,
    title_of,
)  # fmt: skip

VARIANTS = ("none", "routing", "reordering", "both")
_VARIANT_NAMES = {"none": "neither", "routing": "routing only", "reordering": "reordering only", "both": "both"}
_NEAR = 0.15
_PARTS = (("ttft_queue_s", "waiting"), ("ttft_transfer_s", "KV transfer"), ("ttft_compute_s", "prefill and rest"))
_PATHS = (("share_local", "local"), ("share_deflected", "deflected"), ("share_remote", "remote"))


def breakdown_figure(rows: Sequence[Row], rate: float | None = None) -> Figure:
    """Mean TTFT in its parts (above) and mean ITL (below) of each policy, a column for each model and trace, at one rate each.

    Ticks stand at the 95th percentiles, dotted lines at the targets.
    """
    cells = cells_of(best_deployments(rows))
    figure, (upper, lower) = _columns(cells, 2)
    for (cell, members), top, bottom in zip(cells.items(), upper, lower, strict=True):
        at = pick_rate(members, rate)
        shown = _by_policy(members, at)
        _stack(top, shown, [(name, label, 1.0) for name, label in _PARTS])
        _marks(top, [row.ttft_p95_s for row in shown], shown[0].ttft_target_s, 1.0)
        _stack(bottom, shown, [("itl_mean_s", "_ITL", 1e3)])
        _marks(bottom, [row.itl_p95_s for row in shown], shown[0].itl_target_s, 1e3)
        top.set_title(title_of(cell, at))
        _policy_names(top, ["" for _ in shown])
        _policy_names(bottom, [row.policy for row in shown])
    upper[0].set_ylabel("TTFT (s)")
    lower[0].set_ylabel("ITL (ms)")
    shared_legend(figure, [*upper, *lower])
    return figure


def paths_figure(rows: Sequence[Row], rate: float | None = None) -> Figure:
    """The share of rounds prefilled locally, deflected and remotely under each policy, a panel for each model and trace."""
    cells = cells_of(best_deployments(rows))
    figure, (panels,) = _columns(cells, 1)
    for (cell, members), axes in zip(cells.items(), panels, strict=True):
        at = pick_rate(members, rate)
        shown = _by_policy(members, at)
        _stack(axes, shown, [(name, label, 100.0) for name, label in _PATHS])
        axes.set_title(title_of(cell, at))
        axes.set_ylim(0, 100)
        _policy_names(axes, [row.policy for row in shown])
    panels[0].set_ylabel("rounds (%)")
    shared_legend(figure, panels)
    return figure


def ablation_figure(rows: Sequence[Row], rate: float | None = None) -> Figure:
    """Attainment with neither routing nor reordering, with each alone and with both, for each policy, model and
    trace, at one rate each."""

    def at_one_rate(members: Sequence[Row]) -> list[Row]:
        return at_rate(members, pick_rate([row for row in members if row.variant == "both"] or members, rate))

    shown = {name: at_one_rate(members) for name, members in by_policy(rows, policies_of(rows)).items()}
    titles = {f"{name.replace(', ', chr(10))}\n{members[0].rate:.3g} sessions/s": members for name, members in shown.items()}
    axes, figure = _groups(titles, VARIANTS,
                           lambda row: row.variant, "attainment", 100.0, _VARIANT_NAMES)  # fmt: skip
    axes.set_ylabel("rounds attained (%)")
    axes.set_ylim(0, 103)
    shared_legend(figure, [axes])
    return figure


def goodput_figure(rows: Sequence[Row], policies: Sequence[str]) -> Figure:
    """The goodput of each policy on its best deployment, for each model and trace; lines stand at the upper bounds."""
    cells = cells_of(best_deployments(rows))
    axes, figure = _groups({title_of(cell): members for cell, members in cells.items()}, policies,
                           lambda row: row.policy, "goodput", 1.0, {})  # fmt: skip
    for i, members in enumerate(cells.values()):
        bound = max((row.bound for row in members if row.bound is not None), default=None)
        if bound is not None:
            axes.hlines(
                bound, i - 0.45, i + 0.45, colors="0.3", linestyles=":", linewidth=1.2, label="upper bound", gid="upper bound"
            )
    axes.set_ylabel("goodput (sessions/s)")
    shared_legend(figure, [axes])
    return figure


def _columns(cells: dict[Cell, list[Row]], deep: int) -> tuple[Figure, list[list[Axes]]]:
    figure = Figure(figsize=(max(4.0, 1.9 * len(cells)), 0.9 + 1.9 * deep), layout="constrained")
    panels = figure.subplots(deep, len(cells), squeeze=False)
    return figure, [list(row) for row in panels]


def _by_policy(rows: Sequence[Row], rate: float) -> list[Row]:
    """Of each policy the row nearest to the rate; a policy that was not run within 15 % of it is left out."""
    nearest = [min((row for row in rows if row.policy == p), key=lambda row: abs(row.rate - rate)) for p in policies_of(rows)]
    return [row for row in nearest if abs(row.rate - rate) <= _NEAR * rate]


def _value(row: Row, name: str) -> float:
    value: float | None = getattr(row, name)
    return 0.0 if value is None else value


def _stack(axes: Axes, rows: Sequence[Row], parts: Sequence[tuple[str, str, float]]) -> None:
    """A bar a row, of parts upon each other: (key, label, factor)."""
    base = [0.0] * len(rows)
    for i, (name, label, factor) in enumerate(parts):
        heights = [factor * _value(row, name) for row in rows]
        axes.bar(
            range(len(rows)), heights, bottom=base, width=0.7, label=label, color=style_at(i).color, alpha=0.75, hatch=HATCHES[i],
            edgecolor="white", linewidth=0.5,
        )  # fmt: skip
        base = [low + height for low, height in zip(base, heights, strict=True)]


def _marks(axes: Axes, p95s: Sequence[float | None], target_s: float | None, factor: float) -> None:
    """The 95th percentiles and the target, where that does not flatten the bars."""
    points = [(i, factor * p95) for i, p95 in enumerate(p95s) if p95 is not None]
    top = axes.get_ylim()[1]
    axes.plot([x for x, _ in points], [y for _, y in points], linestyle="none", marker="_", color="black", label="P95", gid="P95")
    if target_s is not None:
        axes.axhline(factor * target_s, color="black", linewidth=0.8, linestyle=":", label="target", gid="target")
    tallest = max([top, *(y for _, y in points), factor * (target_s or 0.0)])
    # A starved policy would flatten all others: past 30 times the rest the axis is logarithmic.
    sums = sorted(y for _, y in points)
    if sums and sums[-1] > 30 * sums[len(sums) // 2]:
        axes.set_yscale("symlog", linthresh=max(sums[len(sums) // 2], 1e-9))
    axes.set_ylim(0, 1.08 * tallest)


def _policy_names(axes: Axes, names: Sequence[str]) -> None:
    axes.set_xticks(range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)


def _groups(
    groups: dict[str, list[Row]], names: Sequence[str], key: Callable[[Row], str], value: str,
    factor: float, labels: dict[str, str],
) -> tuple[Axes, Figure]:  # fmt: skip
    """Bars side by side: a group for each entry, a bar for each of `names` that any row has."""
    used = [name for name in names if any(key(row) == name for rows in groups.values() for row in rows)]
    width = 0.85 / max(1, len(used))
    figure = Figure(figsize=(max(4.0, (0.4 + 0.18 * len(used)) * len(groups)), 3.2), layout="constrained")
    axes = figure.subplots()
    for i, name in enumerate(used):
        own = [next((row for row in rows if key(row) == name), None) for rows in groups.values()]
        known = [(at, row) for at, row in enumerate(own) if row is not None and getattr(row, value) is not None]
        xs = [at + (i - (len(used) - 1) / 2) * width for at, _ in known]
        axes.bar(
            xs, [factor * getattr(row, value) for _, row in known], width=width, label=labels.get(name, name),
            color=style_at(i).color, alpha=0.75, hatch=HATCHES[i % len(HATCHES)], edgecolor="white", linewidth=0.5,
            yerr=_errors([row for _, row in known], value, factor), error_kw={"elinewidth": 0.8, "capsize": 2},
        )  # fmt: skip
    axes.set_xticks(range(len(groups)), list(groups), fontsize=7)
    axes.grid(visible=False, axis="x")
    axes.set_axisbelow(True)
    return axes, figure


def _errors(rows: Sequence[Row], name: str, factor: float) -> list[list[float]]:
    """The confidence intervals of a figure, as lengths below and above its bar; NaN where none is known."""
    lengths: list[list[float]] = [[], []]
    for row in rows:
        value, low, high = (getattr(row, key) for key in (name, f"{name}_low", f"{name}_high"))
        lengths[0].append(math.nan if low is None else factor * max(0.0, value - low))
        lengths[1].append(math.nan if high is None else factor * max(0.0, high - value))
    return lengths
