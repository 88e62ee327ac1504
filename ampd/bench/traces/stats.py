"""What a trace is like in figures: as a table, and as JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from ampd.bench.terminal import make_table
from ampd.simulator.types import Floats, TraceSession


@dataclass(frozen=True, slots=True)
class TraceStats:
    """Values of every round (of sessions: of every session), in tokens and seconds. `gap_s` leaves out first rounds.

    `reuse`: the share of all prompt tokens that are history. `rate`: sessions a second, None where they all arrive at once.
    `tools`: each tool's share of the gaps and its mean seconds; gaps of unknown tools are under "".
    """

    values: dict[str, Floats]
    reuse: float
    rate: float | None
    tools: dict[str, tuple[float, float]]

    def as_json(self) -> dict[str, Any]:
        """Figures by name."""
        return {
            "sessions": len(self.values["rounds a session"]),
            "rounds": len(self.values["prompt"]),
            "reuse_share": self.reuse,
            "sessions_per_s": self.rate,
            "rows": [{"name": name, **_summary(values)} for name, values in self.values.items()],
            "tools": [{"tool": name, "share": share, "mean_s": mean} for name, (share, mean) in self.tools.items()],
        }


def measure_trace(sessions: Sequence[TraceSession]) -> TraceStats:
    """Of at least one session."""
    rounds = [r for session in sessions for r in session.rounds]
    later = [r for session in sessions for r in session.rounds[1:]]
    prompt, history = (np.array([getattr(r, name) for r in rounds], dtype=float) for name in ("prompt", "history"))
    values = {
        "rounds a session": np.array([len(session.rounds) for session in sessions], dtype=float),
        "new tokens a session": _by_session(sessions, prompt - history),
        "output a session": _by_session(sessions, np.array([r.output for r in rounds], dtype=float)),
        "context at the end": np.array([s.rounds[-1].prompt + s.rounds[-1].output for s in sessions], dtype=float),
        "prompt": prompt,
        "history": history,
        "new tokens": prompt - history,
        "output": np.array([r.output for r in rounds], dtype=float),
        "gap (s)": np.array([r.gap_s for r in later]),
    }
    gaps: dict[str, list[float]] = defaultdict(list)
    for r in later:
        gaps[r.tool].append(r.gap_s)
    tools = {name: (len(gaps[name]) / len(later), sum(gaps[name]) / len(gaps[name])) for name in sorted(gaps)}
    return TraceStats(values, float(history.sum() / prompt.sum()), _rate(sessions), tools)


def stats_table(stats: TraceStats, title: str) -> Table:
    """Mean, p50, p95 and maximum of everything, lengths in tokens."""
    table = make_table(title)
    for name in ("", "mean", "p50", "p95", "max"):
        table.add_column(name, justify="right" if name else "left")
    for name, values in stats.values.items():
        summary = _summary(values)
        digits = 2 if name in ("gap (s)", "rounds a session") else 0
        table.add_row(
            name, *("-" if summary[key] is None else f"{summary[key]:,.{digits}f}" for key in ("mean", "p50", "p95", "max"))
        )
    return table


def stats_lines(stats: TraceStats) -> list[str]:
    """What is no row of the table."""
    arriving = "no arrival times" if stats.rate is None else f"{stats.rate:.3g} sessions/s"
    lines = [
        f"{len(stats.values['rounds a session']):,} sessions, {len(stats.values['prompt']):,} rounds, {arriving}; "
        f"{100 * stats.reuse:.1f} % of the prompt tokens are history"
    ]
    if any(stats.tools):
        named = (f"{name or 'unknown'} {100 * share:.0f} %, {mean:.2f} s" for name, (share, mean) in stats.tools.items())
        lines.append(f"in the gaps (share, mean): {'; '.join(named)}")
    return lines


def _by_session(sessions: Sequence[TraceSession], values: Floats) -> Floats:
    bounds = np.cumsum([0, *(len(session.rounds) for session in sessions)])
    sums: Floats = np.add.reduceat(values, bounds[:-1])
    return sums


def _rate(sessions: Sequence[TraceSession]) -> float | None:
    """Of the intervals between the first arrival and the last."""
    times = [session.arrives_s for session in sessions]
    lasted = max(times) - min(times)
    return (len(times) - 1) / lasted if lasted else None


def _summary(values: Floats) -> dict[str, float | None]:
    if not len(values):
        return dict.fromkeys(("mean", "p50", "p95", "max"))
    p50, p95 = np.quantile(values, (0.5, 0.95))
    return {"mean": float(values.mean()), "p50": float(p50), "p95": float(p95), "max": float(values.max())}
