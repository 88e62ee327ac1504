"""The command `ampd profile compare`: how two profiles differ, function by function, over what both have measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np

from ampd.bench.cli import write_json
from ampd.bench.terminal import make_console
from ampd.cost_model import Profile, load_profile
from ampd.cost_model.functions import Span
from ampd.errors import ProfileError
from ampd.profiler.curves import Curve, Floats, curves
from ampd.profiler.report import curve_names, make_fits_table, span_text
from ampd.profiler.show import FILE, JSON

_STEPS = 9  # values of each argument, in geometric steps over the common range


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one function: `ratio` is seconds by B over seconds by A at the rows of `args`."""

    curve: Curve  # of A
    spans: dict[str, Span]  # measured by both
    args: list[tuple[int, ...]]
    ratio: Floats

    @property
    def worst(self) -> int:
        """The row of the largest factor either way."""
        return int(np.argmax(np.abs(np.log(self.ratio))))

    def as_json(self) -> dict[str, Any]:
        """A row. `p95_difference` is of |B / A - 1|."""
        return {
            **curve_names(self.curve),
            "median_ratio": float(np.median(self.ratio)),
            "p95_difference": float(np.quantile(np.abs(self.ratio - 1), 0.95)),
            "worst_ratio": float(self.ratio[self.worst]),
            "worst_at": dict(zip(self.spans, self.args[self.worst], strict=True)),
            "range": {name: list(span) for name, span in self.spans.items()},
            "points": len(self.args),
        }


def differences(a: Profile, b: Profile) -> tuple[list[Difference], list[str]]:
    """The functions that both profiles have with a common range, and lines that name those that cannot be compared."""
    ours, theirs = ({curve.key: curve for curve in curves(profile)} for profile in (a, b))
    found, left_out = [], []
    for key in (key for key in ours if key in theirs):
        curve, other = ours[key], theirs[key]
        spans = {n: (max(s[0], other.spans[n][0]), min(s[1], other.spans[n][1])) for n, s in curve.spans.items()}
        args = _common(spans, [c.sequence for c in (curve, other) if c.sequence is not None])
        if args:
            found.append(Difference(curve, spans, args, other.predicted(args) / curve.predicted(args)))
        else:
            left_out.append(f"{_named(curve)}: no common range (A: {span_text(curve.spans)}; B: {span_text(other.spans)})")
    for where, mine, yours in (("A", ours, theirs), ("B", theirs, ours)):
        if alone := [_named(curve) for key, curve in mine.items() if key not in yours]:
            left_out.append(f"only in {where}: {', '.join(alone)}")
    return found, left_out


def _named(curve: Curve) -> str:
    return f"{curve.title} (theta {curve.theta})"


def _common(spans: dict[str, Span], sequences: Sequence[Span]) -> list[tuple[int, ...]]:
    """Arguments over the ranges, also over those of the context of one sequence."""
    if any(low > high for low, high in spans.values()):
        return []
    rows = product(*(_steps(span) for span in spans.values()))
    if "context" not in spans:
        return list(rows)
    names = list(spans)
    batch, context = names.index("batch"), names.index("context")
    limits = sequences or [(1, spans["context"][1])]
    return [row for row in rows if all(low * row[batch] <= row[context] <= high * row[batch] for low, high in limits)]


def _steps(span: Span) -> list[int]:
    low, high = span
    steps = np.geomspace(max(low, 1), max(high, 1), _STEPS).round().astype(int)
    return sorted({low, high, *steps.tolist()})


@click.command()
@click.argument("profile_a", metavar="A", type=FILE)
@click.argument("profile_b", metavar="B", type=FILE)
@JSON
def compare(profile_a: Path, profile_b: Path, json_file: str | None) -> None:
    """How profile B differs from profile A, function by function over the range that both measured."""
    console = make_console(stderr=json_file == "-")
    a, b = load_profile(profile_a), load_profile(profile_b)
    found, left_out = differences(a, b)
    for name, profile in (("A", a), ("B", b)):
        meta = profile.meta
        console.print(f"{name}: {meta.model} on {meta.device}, {meta.source} {meta.created}", highlight=False)
    if found:
        table = make_fits_table(
            "Seconds of B / seconds of A", ("function", "theta", "range", "median", "p95 off by", "worst", "at")
        )
        for difference in found:
            row = difference.as_json()
            at = ", ".join(f"{name} {value:,}" for name, value in row["worst_at"].items())
            table.add_row(difference.curve.title, difference.curve.theta, span_text(difference.spans), f"{row['median_ratio']:.2f}",
                          f"{100 * row['p95_difference']:.1f} %", f"{row['worst_ratio']:.2f}", at)  # fmt: skip
        console.print(table)
    for line in left_out:
        console.print(line, highlight=False)
    write_json({"rows": [d.as_json() for d in found], "left_out": left_out}, json_file)
    if not found:
        raise ProfileError(f"profiles {profile_a} and {profile_b}: no function in common over a common range, nothing to compare")
