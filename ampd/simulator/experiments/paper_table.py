"""The table of the paper's experiments: goodput by cell and policy, ratios, and each cell against what ampd promises."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ampd.simulator.experiments.paper_grid import DEFAULT, DYNAMO, ENTRANTS, PAPER

Row = Mapping[str, Any]
AnyRow = TypeVar("AnyRow", bound=Row)
CellName = tuple[str, str, str]  # hardware, model, trace

# The promises: over `paper` in each cell and on the geometric mean, and over the strongest Dynamo form on the geometric mean.
PAPER_EACH = 1.2
PAPER_MEAN = 1.4
DYNAMO_MEAN = 1.1


@dataclass(frozen=True, slots=True)
class Verdict:
    """One cell. Ratios are ampd's goodput over the other's: infinite where the other has none, NaN where neither has.

    `ahead`: ampd is at least as good as `rival`, the best of all others, but for what the intervals of both leave open.
    `room`: the bound over ampd's goodput.
    """

    cell: CellName
    over_paper: float
    over_dynamo: float
    rival: str
    over_rival: float
    ahead: bool
    room: float


def best_rows(rows: Iterable[AnyRow]) -> list[AnyRow]:
    """One for each cell and policy: the run at the goodput."""
    return [row for row in rows if row.get("best")]


def by_cell(rows: Iterable[Row]) -> dict[CellName, dict[str, Row]]:
    """The best rows by policy."""
    cells: dict[CellName, dict[str, Row]] = {}
    for row in best_rows(rows):
        cells.setdefault((row["hardware"], row["model"], row["trace"]), {})[row["policy"]] = row
    return cells


def judge_cell(cell: CellName, policies: Mapping[str, Row]) -> Verdict:
    """`policies` has ampd's default and at least one other."""
    own = policies[DEFAULT]
    others = {name: row for name, row in policies.items() if name != DEFAULT}
    rival = max(others, key=lambda name: float(others[name]["goodput"]))
    over_rival = ratio(own, others[rival])
    dynamo = [row for name, row in others.items() if name in DYNAMO]
    return Verdict(
        cell,
        ratio(own, others[PAPER]) if PAPER in others else math.nan,
        min((ratio(own, row) for row in dynamo), default=math.nan),
        rival,
        over_rival,
        not math.log(max(over_rival, 1e-9)) < -math.hypot(_spread(own), _spread(others[rival])),
        own["bound"] / own["goodput"] if own["goodput"] else math.inf,
    )


def ratio(own: Row, other: Row) -> float:
    """Of the goodputs."""
    a, b = float(own["goodput"]), float(other["goodput"])
    return a / b if b else (math.inf if a else math.nan)


def geometric_mean(ratios: Iterable[float]) -> float:
    """Of those that are finite: a ratio to a goodput of nothing counts for neither side."""
    known = [math.log(r) for r in ratios if math.isfinite(r) and r > 0]
    return math.exp(math.fsum(known) / len(known)) if known else math.nan


def _spread(row: Row) -> float:
    """Half the interval of the logarithm of the goodput."""
    low, high = row.get("goodput_low"), row.get("goodput_high")
    return math.log(high / low) / 2 if low and high else 0.0


def render_table(rows: Sequence[Row]) -> str:
    """Plain text, a line a cell: goodput of each policy in sessions/s, then ratios and verdicts, then the means."""
    cells = by_cell(rows)
    names = [e.name for e in ENTRANTS if any(e.name in policies for policies in cells.values())]
    lines = [["cell", "bound", *names]]
    for cell, policies in cells.items():
        bound = next(iter(policies.values()))["bound"]
        lines.append([" ".join(cell), _number(bound), *(_number(policies[n]["goodput"]) if n in policies else "-" for n in names)])
    verdicts = [judge_cell(cell, policies) for cell, policies in cells.items() if DEFAULT in policies and len(policies) > 1]
    judged = [["cell", "/paper", "/dynamo", "best other", "/other", "as good", f">= {PAPER_EACH}x paper", "bound/ampd"]]
    for v in verdicts:
        judged.append(
            [" ".join(v.cell), _ratio(v.over_paper), _ratio(v.over_dynamo), v.rival, _ratio(v.over_rival), _yes(v.ahead),
             _yes(not v.over_paper < PAPER_EACH), _ratio(v.room)]
        )  # fmt: skip
    effort = "" if all(row.get("effort") == "full" for row in best_rows(rows)) else " QUICK: short runs, coarse rates."
    return "\n\n".join(
        [f"Goodput, sessions/s: 90 % of rounds attained, stationary.{effort}", _aligned(lines), _aligned(judged), summary(verdicts)]
    )


def summary(verdicts: Sequence[Verdict]) -> str:
    """The geometric means against the promises."""
    paper, dynamo = geometric_mean(v.over_paper for v in verdicts), geometric_mean(v.over_dynamo for v in verdicts)
    infinite = sum(math.isinf(v.over_paper) for v in verdicts)
    left_out = f" ({infinite} cells without goodput of paper left out)" if infinite else ""
    short = sum(v.over_paper < PAPER_EACH for v in verdicts)
    return "\n".join(
        [
            f"over paper: geometric mean {_ratio(paper)}{left_out}, promised {PAPER_MEAN}: {_kept(paper, PAPER_MEAN)}; "
            f"cells below {PAPER_EACH}: {short} of {len(verdicts)}",
            f"over the strongest Dynamo form: geometric mean {_ratio(dynamo)}, promised {DYNAMO_MEAN}: "
            f"{_kept(dynamo, DYNAMO_MEAN)}",
            f"at least as good as every baseline: {sum(v.ahead for v in verdicts)} of {len(verdicts)} cells",
        ]
    )


def _number(value: float) -> str:
    return f"{value:.3g}"


def _ratio(value: float) -> str:
    return "-" if math.isnan(value) else "inf" if math.isinf(value) else f"{value:.2f}"


def _kept(mean: float, promised: float) -> str:
    return "-" if math.isnan(mean) else _yes(mean >= promised)


def _yes(value: bool) -> str:
    return "yes" if value else "NO"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines)
