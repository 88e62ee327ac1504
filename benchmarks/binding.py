"""Time of choosing a session's decode worker, and of asking whether it should move: `python -m benchmarks.binding`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from ampd.bench.cli import write_json
from ampd.bench.terminal import make_console, make_table
from ampd.cost_model import CoarseCostModel
from ampd.policy.binding import choose_decode, rebind
from ampd.policy.types import ClusterView, Round, WorkerView
from benchmarks.timing import machine, timed

_COST = CoarseCostModel()
_PROMPT = 2000


def cluster(workers: int, rng: random.Random) -> ClusterView:
    """Busy decode workers."""
    return ClusterView((), [worker(i, rng) for i in range(workers)])


def worker(id: int, rng: random.Random) -> WorkerView:
    """One whose pool is shared by running and waiting sessions."""
    running = rng.randint(1, 32)
    context, pinned = running * rng.randint(2000, 8000), rng.randint(0, 200_000)
    return WorkerView(
        id=id,
        role="decode",
        epoch=f"epoch-{id}",
        theta=1,
        queued_s=rng.uniform(0, 1),
        running=running,
        context=context,
        kv_total=600_000,
        kv_free=600_000 - context - pinned,
        kv_pinned=pinned,
        kv_promised=rng.choice([0, 0, 2000]),
    )


def measure(workers: int, count: int) -> dict[str, Any]:
    """The row of one number of decode workers. Views change from call to call."""
    rng = random.Random(workers)
    views = [cluster(workers, rng) for _ in range(20)]
    asked = [views[i % len(views)] for i in range(count)]
    rounds = [Round("s", 3, rng.randrange(workers), 6000, 300, 2.0, 0.1) for _ in asked]
    calls: dict[str, Sequence[Callable[[], object]]] = {
        "p50_us": [partial(choose_decode, view, _PROMPT) for view in asked],
        "predicted_load_p50_us": [partial(choose_decode, view, _PROMPT, "predicted_load", _COST) for view in asked],
        "rebind_p50_us": [partial(rebind, r, view, _COST, "when_cheaper") for r, view in zip(rounds, asked, strict=True)],
    }
    return {"workers": workers} | {name: round(1e6 * timed(of)[0], 2) for name, of in calls.items()}


@click.command()
@click.option("--workers", multiple=True, type=click.IntRange(min=1), default=(2, 8, 64, 256, 1024), show_default=True)
@click.option("--decisions", "count", type=click.IntRange(min=1), default=1000, show_default=True)
@click.option("--json", "json_file", metavar="FILE", help="Write the rows as JSON; '-' is standard output.")
def main(workers: tuple[int, ...], count: int, json_file: str | None) -> None:
    """Measure the binding."""
    rows = [measure(number, count) for number in workers]
    console = make_console(stderr=json_file == "-")
    console.print("one choice among so many decode workers: medians")
    table = make_table("binding")
    for name in ("workers", "kv_room us", "predicted_load us", "rebind us"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    console.print(table)
    console.print(machine())
    write_json({"rows": rows}, json_file)


if __name__ == "__main__":
    main()
