"""What `ampd sim` prints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ampd.bench.terminal import make_table
from ampd.simulator.commands.run import Run
from ampd.simulator.results.attainment import Latency


class Report(Protocol):
    """Is told how many points of all are known."""

    def __call__(self, known: int, total: int, /) -> None: ...


def print_run(console: Console, run: Run, title: str) -> None:
    """One run: latencies, attainment by both rules, paths, where TTFT goes."""
    seen, setup = run.measured, run.setup
    interval = run.interval()
    table = make_table("")
    for name in ("", "mean", "P50", "P95", "P99", "target"):
        table.add_column(name, justify="right" if name else "left")
    table.add_row("TTFT (s)", *_latency(seen.ttft, 1.0, 3), f"{setup.ttft_s:.3f}")
    table.add_row("ITL (ms)", *_latency(seen.itl, 1e3, 1), f"{1e3 * setup.itl_s:.1f}")
    known = "" if math.isnan(interval.low) else f" ({_percent(interval.low)} to {_percent(interval.high)})"
    short = "; the warm-up was cut short, run longer" if run.short else ""
    lines = (
        f"attained  rounds {_percent(seen.attainment)}{known}, sessions {_percent(seen.session_attainment)}",
        f"by P95 of ITL  rounds {_percent(seen.attainment_p95_itl)}, sessions {_percent(seen.session_attainment_p95_itl)}",
        "prefilled  " + ", ".join(f"{name} {_percent(share)}" for name, share in seen.shares.items()),
        "mean TTFT  " + ", ".join(f"{name} {_number(1e3 * value, 1)} ms" for name, value in seen.parts_s.items()),
        f"later than 10 targets  {_percent(seen.very_late)}",
        f"counted  {seen.rounds} rounds, {seen.sessions} sessions, from {run.window.start_s:.0f} s on; "
        f"the last round ended at {run.outcome.ended_s:.0f} s{short}",
    )
    console.print(title, highlight=False, soft_wrap=True)
    console.print(table)
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def sweep_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The goodput of each curve on the rates that were run, and its attainment at each."""
    table = make_table("rounds attained (%) at each rate (sessions/s); goodput: the highest of them that was sustained")
    rates = sorted({row["rate"] for row in rows})
    for name in ("trace", "policy", "deployment"):
        table.add_column(name, overflow="fold")
    for name in ("goodput", *(f"{rate:g}" for rate in rates)):
        table.add_column(name, justify="right")
    curves: dict[tuple[str, ...], dict[float, Mapping[str, Any]]] = {}
    for row in rows:
        name = row["policy"] + (f" ({row['study']} {row['variant']})" if row["variant"] else "")
        curves.setdefault((row["trace"], name, row["deployment"]), {})[row["rate"]] = row
    for names, curve in curves.items():
        shares = [100 * (curve[rate]["attainment"] or 0.0) if rate in curve else math.nan for rate in rates]
        goodput = next(iter(curve.values()))["goodput"]
        table.add_row(*names, f"{goodput:g}", *(_number(share, 1) for share in shares))
    short = sum(row["warm_up_short"] > 0 for row in rows)
    table.caption = f"warm-up cut short in {short} of {len(rows)} rows: run longer for figures that last" if short else None
    return table


@contextmanager
def sweep_progress(console: Console) -> Iterator[Report]:
    """A bar, on a terminal only."""
    columns = (TextColumn("simulations"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def report(known: int, total: int, /) -> None:
            bar.update(task, completed=known, total=total)

        yield report


def _latency(latency: Latency, factor: float, digits: int) -> list[str]:
    return [_number(factor * v, digits) for v in (latency.mean_s, latency.p50_s, latency.p95_s, latency.p99_s)]


def _percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.1f} %"


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
