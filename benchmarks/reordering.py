"""Time of choosing the next prefill of a queue, by window: `python -m benchmarks.reordering`.

The window is full, of tasks with exponential costs that have waited up to three quarters of their target; together they cost
`--load` times the target. 1 is where the most has to be weighed: about half of the tasks can be on time.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any, get_args

import click

from ampd.bench.cli import write_json
from ampd.bench.terminal import make_console, make_table
from ampd.policy.reordering import Order, reorder
from ampd.policy.types import PrefillTask
from benchmarks.timing import machine, timed

_NOW, _TARGET_S = 1000.0, 2.0


def queue_of(window: int, load: float, rng: random.Random) -> list[PrefillTask]:
    """A full window, in arrival order."""
    arrivals = sorted(_NOW - rng.uniform(0, 0.75 * _TARGET_S) for _ in range(window))
    rate = window / (load * _TARGET_S)
    return [PrefillTask(f"task-{i:02d}", at, rng.expovariate(rate), _TARGET_S) for i, at in enumerate(arrivals)]


def measure(window: int, order: Order, load: float, count: int) -> dict[str, Any]:
    """The row of one window."""
    rng = random.Random(window)
    queues = [queue_of(window, load, rng) for _ in range(count)]
    timed([partial(reorder, queue, _NOW, window, order) for queue in queues[:200]])
    p50, p99 = timed([partial(reorder, queue, _NOW, window, order) for queue in queues])
    return {"w": window, "p50_us": round(1e6 * p50, 2), "p99_us": round(1e6 * p99, 2), "order": order}


@click.command()
@click.option("--w", "windows", multiple=True, type=click.IntRange(1, 64), default=(2, 3, 4, 5, 8, 16, 32, 64), show_default=True)
@click.option("--order", type=click.Choice(get_args(Order)), default="ampd", show_default=True)
@click.option("--load", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True)
@click.option("--queues", "count", type=click.IntRange(min=1), default=3000, show_default=True, help="Queues a window.")
@click.option("--json", "json_file", metavar="FILE", help="Write the rows as JSON; '-' is standard output.")
def main(windows: tuple[int, ...], order: Order, load: float, count: int, json_file: str | None) -> None:
    """Measure the reordering."""
    rows = [measure(window, order, load, count) for window in windows]
    console = make_console(stderr=json_file == "-")
    console.print(f"one choice from a full window, order {order}, load {load:g}")
    table = make_table("reordering")
    for name in ("w", "p50 us", "p99 us"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(str(row["w"]), f"{row['p50_us']:.1f}", f"{row['p99_us']:.1f}")
    console.print(table)
    console.print(machine())
    write_json({"rows": rows}, json_file)


if __name__ == "__main__":
    main()
