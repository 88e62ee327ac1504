"""The fits of a profile and their held-out errors, by function and region: as a table and as JSON rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from ampd.cost_model import Profile
from ampd.cost_model.functions import FitError, RegionError, Span
from ampd.profiler.curves import Curve, curves

_EXACT = 5e-4  # points of a formula, which shows as 0.0 %: no region of them is worth a line
_TEXT = ("function", "range")  # the columns that are no numbers


def fits_table(profile: Profile, *, regions: int | None = 0) -> Table:
    """One line a function: measured range, number of points and pieces, held-out error; then its worst `regions`.

    `regions` None: all of them.
    A function whose points were not held out (a fit drawn through published points) has a dash for its errors.
    """
    table = make_fits_table(about(profile), ("function", "theta", "range", "points", "pieces", "median", "p95"))
    table.caption = "median, p95: relative error at held-out points" + (
        f"; indented: the {regions} worst regions" if regions else ""
    )
    for curve in curves(profile):
        errors = _errors(curve.error)
        table.add_row(
            curve.title, curve.theta, span_text(curve.spans), str(curve.error.points), str(len(curve.breaks) + 1), *errors
        )
        exact = curve.error.heldout_p95 < _EXACT
        for region in _worst(curve.error.regions, 0 if exact and regions is not None else regions):
            table.add_row("", "", f"  {span_text(region.where)}", str(region.points), "", *_errors(region), style="dim")
    return table


def _worst(regions: Sequence[RegionError], count: int | None) -> Sequence[RegionError]:
    return regions if count is None else sorted(regions, key=lambda r: -r.heldout_p95)[:count]


def about(profile: Profile) -> str:
    """Whose figures they are, and whether they were measured."""
    meta = profile.meta
    return f"{meta.model} on {meta.device}" + ("" if meta.source == "measured" else f" ({meta.source}, not measured)")


def make_fits_table(title: str, columns: tuple[str, ...]) -> Table:
    """An empty table of the `ampd profile` family: numbers to the right."""
    table = Table(
        title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False
    )
    for name in columns:
        table.add_column(name, justify="left" if name in _TEXT else "right", overflow="fold")
    return table


def fit_rows(profile: Profile) -> list[dict[str, Any]]:
    """A row for each function and theta, for JSON. Errors are shares (0.05: 5 %); None: nothing was held out."""
    return [_row(curve, profile) for curve in curves(profile)]


def _row(curve: Curve, profile: Profile) -> dict[str, Any]:
    return {
        **curve_names(curve),
        "model": profile.meta.model,
        "source": profile.meta.source,
        **_error_row(curve.error),
        "range": {name: list(span) for name, span in curve.spans.items()},
        "along": curve.along,
        "breaks": list(curve.breaks),
        "regions": [{"where": {n: list(s) for n, s in r.where.items()}, **_error_row(r)} for r in curve.error.regions],
    }


def curve_names(curve: Curve) -> dict[str, Any]:
    """What names a function in a JSON row. `theta` is a number, of T_kv between unlike thetas the text `1->2`."""
    ends = curve.theta.split("->")
    theta: int | str = int(ends[0]) if len(set(ends)) == 1 else curve.theta
    return {"name": curve.name, "theta": theta, "direction": curve.direction, "transport": curve.transport}


def _error_row(error: FitError | RegionError) -> dict[str, Any]:
    known = heldout(error)
    return {
        "heldout_median_error": error.heldout_median if known else None,
        "heldout_p95_error": error.heldout_p95 if known else None,
        "points": error.points,
    }


def heldout(error: FitError | RegionError) -> bool:
    """Whether the errors were measured: a fit that no point was held out from states 0 for both."""
    return error.heldout_p95 > 0


def _errors(error: FitError | RegionError) -> list[str]:
    return [f"{100 * e:.1f} %" for e in (error.heldout_median, error.heldout_p95)] if heldout(error) else ["-", "-"]


def span_text(spans: Mapping[str, Span]) -> str:
    """`l_hist 0..4,096, l_incr 16..2,048`"""
    return ", ".join(f"{name} {low:,}..{high:,}" for name, (low, high) in spans.items())
