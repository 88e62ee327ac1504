"""Every routing policy and queue order, live, on one graph: `python -m benchmarks.policies [--graph FILE]`.

One graph runs; for each variant `policy.name` or `policy.reorder.name` is set, nothing else, and the processes that read the key
are restarted: Coordinators for a policy, workers for an order. Generated sessions (the same for all) arrive side by side. A small
machine shows that each works and what it chooses, not which is best.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np

from ampd.bench.cli import plain_errors, write_json
from ampd.bench.client import Client
from ampd.bench.rounds import RoundResult
from ampd.bench.terminal import make_console, make_table
from ampd.config import Graph, Policy, Reorder, load_graph
from ampd.launch import RunningGraph, running_graph
from ampd.launch.progress import for_console
from ampd.launch.readiness import wait_graph
from benchmarks.rounds import run_sessions

POLICIES: tuple[str, ...] = get_args(Policy.model_fields["name"].annotation)
ORDERS: tuple[str, ...] = get_args(Reorder.model_fields["name"].annotation)
_READY_S = 60.0


def variants() -> list[tuple[str, str]]:
    """(policy, order): each policy with the default order, then each further order with the default policy."""
    policy, order = Policy().name, Reorder().name
    return [(p, order) for p in POLICIES] + [(policy, o) for o in ORDERS if o != order]


async def set_variant(running: RunningGraph, graph: Graph, policy: str, order: str) -> Graph:
    """Make a running graph use a policy and an order; returns what it runs then. `graph` is what it ran until now."""
    reorder = graph.policy.reorder.model_copy(update={"name": order})
    wanted = graph.model_copy(update={"policy": graph.policy.model_copy(update={"name": policy, "reorder": reorder})})
    kinds = {"worker"} if order != graph.policy.reorder.name else set()
    kinds |= {"coordinator"} if policy != graph.policy.name else set()
    await running.change(wanted, [spec.name for spec in running.supervisor.specs if spec.kind in kinds])
    await wait_graph(running.url, graph.model.served_name, _READY_S)
    return wanted


def figures(policy: str, order: str, results: Sequence[RoundResult], graph: Graph) -> dict[str, Any]:
    """The figures of one variant; times in seconds. Shares are of the answered rounds."""
    good = [r.facts for r in results if r.error is None and r.facts is not None]
    ttft = [f.ttft_s or 0.0 for f in good] or [0.0]
    itl = [f.itl_s or 0.0 for f in good] or [0.0]
    attained = [t <= graph.targets.ttft_s and i <= graph.targets.itl_s for t, i in zip(ttft, itl, strict=True)]
    return {
        "policy": policy,
        "order": order,
        "rounds": len(results),
        "answered": len(good),
        "remote_share": sum(f.path == "remote" for f in good) / max(1, len(good)),
        "reasons": dict(Counter(f.reason for f in good).most_common()),
        "ttft_p50_s": float(np.median(ttft)),
        "ttft_p95_s": float(np.quantile(ttft, 0.95)),
        "itl_p50_s": float(np.median(itl)),
        "attained": sum(attained) / len(attained),
    }


@click.command()
@click.option(
    "--graph",
    "graph_file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("configs/tiny-test.yaml"),
    show_default=True,
)
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key of the graph; repeatable.")
@click.option("--only", multiple=True, metavar="NAME", help="Only this policy or order; repeatable.")
@click.option("--sessions", type=click.IntRange(min=1), default=6, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=4, show_default=True, help="Rounds of each session.")
@click.option("--words", type=click.IntRange(min=1), default=300, show_default=True, help="Mean new words of a round.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), default=2.0, show_default=True, help="Sessions a second.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--json", "json_file", metavar="FILE", help="Write the rows as JSON; '-' is standard output.")
def main(
    graph_file: Path, sets: tuple[str, ...], only: tuple[str, ...], sessions: int, rounds: int, words: int, rate: float,
    max_tokens: int, json_file: str | None,
) -> None:  # fmt: skip
    """Run each policy and order. Exits with 1 when a round fails, with 2 when a graph cannot start."""
    console = make_console(stderr=json_file == "-")
    if unknown := sorted(set(only) - {*POLICIES, *ORDERS}):
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join([*POLICIES, *ORDERS])}", param_hint="--only")
    load = {"sessions": sessions, "rounds": rounds, "words": words, "rate": rate, "max_tokens": max_tokens}

    async def run() -> list[dict[str, Any]]:
        rows = []
        graph = load_graph(graph_file, sets)
        progress = for_console(console)
        async with running_graph(graph, progress=progress) as running, Client(running.url, graph.model.served_name) as client:
            progress.close()
            graph = running.graph
            for policy, order in [(p, o) for p, o in variants() if not only or p in only or (o in only and p == Policy().name)]:
                graph = await set_variant(running, graph, policy, order)
                results = await run_sessions(client, random.Random(0), **load)  # type: ignore[arg-type]
                rows.append(figures(policy, order, results, graph))
        return rows

    with plain_errors():
        rows = asyncio.run(run())
    table = make_table("policies and orders")
    for name in ("policy", "order", "answered", "remote", "TTFT p50 s", "p95", "ITL p50 ms", "attained", "reasons"):
        table.add_column(name, justify="left" if name in ("policy", "order", "reasons") else "right")
    for r in rows:
        reasons = ", ".join(f"{name} {count}" for name, count in r["reasons"].items())
        times = [f"{r['ttft_p50_s']:.2f}", f"{r['ttft_p95_s']:.2f}", f"{1e3 * r['itl_p50_s']:.1f}"]
        answered = f"{r['answered']}/{r['rounds']}"
        table.add_row(r["policy"], r["order"], answered, f"{r['remote_share']:.0%}", *times, f"{r['attained']:.0%}", reasons)
    console.print(table)
    write_json({"rows": rows}, json_file)
    sys.exit(0 if all(r["answered"] == r["rounds"] for r in rows) else 1)


if __name__ == "__main__":
    main()
