"""What the figures share: one style for each policy in all of them, which rate a bar stands for, which deployment a policy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ampd.bench.plot_style import Style
from ampd.simulator.experiments.goodput import ATTAINED
from ampd.simulator.results.report_rows import Row

# Okabe and Ito's colours, which the colour-blind can tell apart; lines and markers tell them apart without colour.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9", "#999999")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*", "h")
_LINES: tuple[str | tuple[int, tuple[int, ...]], ...] = ("-", "--", "-.", ":", (0, (7, 2, 1, 2, 1, 2)))
HATCHES = ("", "///", "...", "\\\\\\", "xx", "++", "oo", "--", "**", "||", "OO")
OWN = "predictive"  # ampd's
_FIRST = (OWN, "paper")  # the others by name

Cell = tuple[str, str, str]  # hardware, model, trace


def policies_of(rows: Iterable[Row]) -> list[str]:
    """In the order of legends."""
    names = sorted({row.policy for row in rows})
    return [name for name in _FIRST if name in names] + [name for name in names if name not in _FIRST]


def style_at(index: int) -> Style:
    """Of the policy, variant or trace at this place of its list."""
    return Style(_COLORS[index % len(_COLORS)], _MARKERS[index % len(_MARKERS)], _LINES[index % len(_LINES)])


def cells_of(rows: Sequence[Row]) -> dict[Cell, list[Row]]:
    """Rows by what a panel shows."""

    def cell(row: Row) -> Cell:
        return row.hardware, row.model, row.trace

    return {key: list(members) for key, members in groupby(sorted(rows, key=cell), cell)}


def by_policy(rows: Sequence[Row], policies: Sequence[str]) -> dict[str, list[Row]]:
    """Rows of each policy under each model and trace, on its best deployment; named by model, trace and, of several, policy."""
    return {
        f"{model}, {trace}" + (f", {policy}" if len(policies) > 1 else ""): own
        for (_, model, trace), members in cells_of(best_deployments(rows)).items()
        for policy in policies
        if (own := [row for row in members if row.policy == policy])
    }


def best_deployments(rows: Sequence[Row]) -> list[Row]:
    """Of each policy in each cell the rows of its best deployment: by goodput, then by mean attainment, then by name."""
    kept = []
    for members in cells_of(rows).values():
        for policy in policies_of(members):
            own = [row for row in members if row.policy == policy]
            best = max(sorted({row.deployment for row in own}), key=lambda name: _merit([r for r in own if r.deployment == name]))
            kept += [row for row in own if row.deployment == best]
    return kept


def _merit(rows: Sequence[Row]) -> tuple[float, float]:
    shares = [row.attainment for row in rows if row.attainment is not None]
    return max((row.goodput or 0.0 for row in rows), default=0.0), sum(shares) / max(1, len(shares))


def pick_rate(rows: Sequence[Row], wanted: float | None) -> float:
    """The rate that bars of one panel stand for: the one nearest to `wanted`, else the highest at which the best row still has 90 %
    of its rounds attained, else the lowest.
    """
    rates = sorted({row.rate for row in rows})
    if wanted is not None:
        return min(rates, key=lambda rate: (abs(rate - wanted), rate))
    good = [row.rate for row in rows if (row.attainment or 0.0) >= ATTAINED]
    return max(good, default=rates[0])


def at_rate(rows: Sequence[Row], rate: float) -> list[Row]:
    """The rows of this rate."""
    return [row for row in rows if row.rate == rate]


def title_of(cell: Cell, rate: float | None = None) -> str:
    """Of a panel, one word a line: panels are narrow."""
    _, model, trace = cell
    return f"{model}\n{trace}" + ("" if rate is None else f"\n{rate:.3g} sessions/s")


def shared_legend(figure: Figure, panels: Iterable[Axes], column_inches: float = 1.6) -> None:
    """One legend above all panels, each label once; as many columns as there is room for."""
    entries: dict[str, Artist] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(str(label), handle)
    columns = max(1, int(figure.get_figwidth() / column_inches))
    figure.legend(list(entries.values()), list(entries), loc="outside upper left", ncols=columns, handlelength=3)
