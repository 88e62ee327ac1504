"""The fits of a profile and their errors, as a table."""

from __future__ import annotations

from rich import box
from rich.table import Table

from ampd.cost_model import Profile
from ampd.cost_model.functions import FitError, Segment, Span


def fits_table(profile: Profile) -> Table:
    """One row a function: measured range, number of points and segments, held-out error."""
    table = Table(title=f"{profile.meta.model} on {profile.meta.device}", title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("function", "theta", "measured range", "points", "segments", "held-out median", "p95"):
        table.add_column(name, justify="left" if name in ("function", "measured range") else "right")
    for pre in profile.t_pre:
        measured = f"l_hist {_span(pre.l_hist)}, l_incr {_span(pre.l_incr)}"
        table.add_row(*_row("T_pre", str(pre.theta), measured, pre.error, pre.segments))
    for dec in profile.t_dec:
        measured = f"batch {_span(dec.batch)}, context {_span(dec.context)}"
        table.add_row(*_row("T_dec", str(dec.theta), measured, dec.error, dec.segments))
    for kv in profile.t_kv:
        theta = f"{kv.theta_src}->{kv.theta_dst}"
        table.add_row(*_row(f"T_kv {kv.direction}", theta, f"tokens {_span(kv.tokens)}", kv.error, kv.segments))
    return table


def _row(name: str, theta: str, measured: str, error: FitError, segments: list[Segment]) -> list[str]:
    errors = [f"{100 * e:.1f} %" for e in (error.heldout_median, error.heldout_p95)]
    return [name, theta, measured, str(error.points), str(len(segments)), *errors]


def _span(span: Span) -> str:
    return f"{span[0]:,}..{span[1]:,}"
