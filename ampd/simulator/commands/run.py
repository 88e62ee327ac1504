"""One simulation and what it shows."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Any

from ampd.policy.types import CostModel
from ampd.simulator.results.attainment import Measured, Window, attainment_interval, measure, warm_up_s
from ampd.simulator.results.confidence import Interval
from ampd.simulator.results.report_rows import rounded
from ampd.simulator.simulate import simulate
from ampd.simulator.timeline import TimelineSink
from ampd.simulator.types import PATHS, Outcome, Setup, TraceSession


@dataclass(frozen=True, slots=True)
class Run:
    """`window`: what was counted; `short`: arrivals ended before the warm-up was as long as it should be."""

    setup: Setup
    sessions: Sequence[TraceSession]
    outcome: Outcome
    window: Window
    short: bool
    measured: Measured

    def interval(self) -> Interval:
        """Of the attainment, by the bootstrap over sessions."""
        return attainment_interval(self.outcome, self.sessions, self.setup.ttft_s, self.setup.itl_s, self.window)


def run_once(
    setup: Setup, cost: CostModel, sessions: Sequence[TraceSession], end_s: float, seed: int, warm_s: float | None = None,
    sink: TimelineSink | None = None,
) -> Run:  # fmt: skip
    """Serve all sessions to their end, and count the rounds that arrive from `warm_s` until arrivals end at `end_s`.

    `warm_s` None: 2.5 mean lifetimes of the sessions, at most half of the time; none where arrivals have no end of their own (a
    recorded trace). All arriving sessions are served to their end, so that no round is left out for being slow.
    """
    outcome = simulate(setup, cost, sessions, seed, sink=sink)
    wanted = warm_up_s(outcome, sessions) if warm_s is None and math.isfinite(end_s) else warm_s or 0.0
    start_s = min(wanted, end_s / 2) if warm_s is None else wanted
    window = Window(start_s, end_s)
    measured = measure(outcome, sessions, setup.ttft_s, setup.itl_s, window)
    return Run(setup, sessions, outcome, window, start_s < wanted, measured)


def run_document(run: Run, names: dict[str, Any]) -> dict[str, Any]:
    """As JSON. `names`: what the run is of."""
    setup, interval = run.setup, run.interval()
    workers = [group for group in setup.groups for _ in range(group.replicas)]
    busy, ended_s = run.outcome.busy_s, max(run.outcome.ended_s, 1e-9)
    return names | {
        "gpus": setup.gpus,
        "ttft_target_s": rounded(setup.ttft_s),
        "itl_target_s": rounded(setup.itl_s),
        "window_s": [rounded(run.window.start_s), rounded(run.window.end_s) if math.isfinite(run.window.end_s) else None],
        "warm_up_cut_short": run.short,
        "ended_s": rounded(run.outcome.ended_s),
        "metrics": {
            key: rounded(value) if isinstance(value, float) else value
            for key, value in (run.measured.row() | {"attainment_low": interval.low, "attainment_high": interval.high}).items()
        },
        "counts": dict(sorted(run.outcome.counts.items())),
        "workers": [
            {"worker": i, "role": g.role, "theta": g.theta, "busy_share": rounded(busy.get(i, 0.0) / ended_s)}
            for i, g in enumerate(workers)
        ],
        "policy_settings": setup.policy.model_dump(mode="json"),
    }  # fmt: skip


_COLUMNS = ("arrived_s", "ttft_s", "itl_s", "itl_p95_s", "ended_s", "prompt", "l_hist", "held", "output", "worker", "decode",
            "queued_s", "moved_s")  # fmt: skip


def rounds_csv(run: Run) -> str:
    """One line a round that ended, in order of arrival: seconds to the microsecond, no ITL as an empty field."""
    records, setup = run.outcome.records, run.setup
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("session", "round", "path", "attained", *_COLUMNS))
    columns = [getattr(records, name).tolist() for name in _COLUMNS]
    order = sorted(range(len(records)), key=lambda i: (records.arrived_s[i], records.session[i], records.number[i]))
    for i in order:
        attained = records.ttft_s[i] <= setup.ttft_s and not records.itl_s[i] > setup.itl_s
        name = run.sessions[int(records.session[i])].name
        values = [_text(column[i]) for column in columns]
        writer.writerow((name, int(records.number[i]), PATHS[records.path[i]], int(attained), *values))
    return text.getvalue()


def _text(value: float | int) -> str:
    if isinstance(value, int):
        return str(value)
    return "" if math.isnan(value) else f"{value:.6f}"
