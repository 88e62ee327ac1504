"""TTFT and ITL of multi-round sessions by the path that the policy chose: `python -m benchmarks.rounds [--url URL]`.

Sessions arrive one after the other as a Poisson process; within a session the next round follows the answer. Prompts are
generated words, new on every run, so nothing is cached from an earlier one.
"""

from __future__ import annotations

import asyncio
import random
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from ampd.bench.cli import plain_errors, write_json
from ampd.bench.client import Client
from ampd.bench.rounds import RoundRequest, RoundResult
from ampd.bench.target import DEFAULT_GRAPH, open_target
from ampd.bench.terminal import make_console, make_table
from ampd.config import Graph

_WORDS = ("time", "year", "people", "way", "day", "man", "thing", "life", "child", "world", "school", "state", "family", "group")


async def run_sessions(
    client: Client, rng: random.Random, *, sessions: int, rounds: int, words: int, rate: float, max_tokens: int
) -> list[RoundResult]:
    """Play the sessions. `words` is the mean length of a round's new text, `rate` the sessions that arrive a second."""
    run = uuid.uuid4().hex[:8]

    async def session(index: int, starts_s: float, texts: Sequence[str]) -> list[RoundResult]:
        await asyncio.sleep(starts_s)
        prompt, results = "", []
        for number, text in enumerate(texts, start=1):
            prompt += text
            request = RoundRequest(
                session=f"rounds-{run}-{index}", number=number, prompt=prompt, max_tokens=max_tokens, final=number == len(texts)
            )
            results.append(await client.send(request))
            prompt += results[-1].text
        return results

    starts = np.cumsum([rng.expovariate(rate) for _ in range(sessions)])
    texts = [[_text(rng, words) for _ in range(rounds)] for _ in range(sessions)]
    played = await asyncio.gather(*(session(i, float(at), t) for i, (at, t) in enumerate(zip(starts, texts, strict=True))))
    return [result for results in played for result in results]


def _text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(_WORDS, k=max(1, round(rng.expovariate(1 / words))))) + "\n"


def by_path(results: Sequence[RoundResult], graph: Graph) -> dict[str, dict[str, Any]]:
    """Figures of the answered rounds by path, and of all of them; times in seconds. `attained`: both within the graph's targets."""
    groups: dict[str, list[RoundResult]] = {}
    for result in results:
        if result.error is None:
            path = result.facts.path if result.facts is not None else "unknown"
            groups.setdefault(path, []).append(result)
            groups.setdefault("all", []).append(result)
    return {path: _figures(groups[path], graph) for path in sorted(groups, key=lambda p: (p == "all", p))}


def _figures(results: Sequence[RoundResult], graph: Graph) -> dict[str, Any]:
    ttft = [r.facts.ttft_s if r.facts is not None and r.facts.ttft_s is not None else r.ttft_s or 0.0 for r in results]
    itl = [r.facts.itl_s if r.facts is not None and r.facts.itl_s is not None else r.itl_s or 0.0 for r in results]
    attained = [t <= graph.targets.ttft_s and i <= graph.targets.itl_s for t, i in zip(ttft, itl, strict=True)]
    figures: dict[str, Any] = {"rounds": len(results), "attained": sum(attained) / len(attained)}
    for name, values in (("ttft", ttft), ("itl", itl)):
        figures |= {f"{name}_p{q}_s": round(float(np.quantile(values, q / 100)), 4) for q in (50, 95)}
    return figures


def print_figures(console: Console, figures: dict[str, dict[str, Any]]) -> None:
    """One row a path."""
    table = make_table("rounds by path")
    for name in ("path", "rounds", "TTFT p50 s", "p95", "ITL p50 ms", "p95", "attained"):
        table.add_column(name, justify="left" if name == "path" else "right")
    for path, f in figures.items():
        times = [f"{f['ttft_p50_s']:.2f}", f"{f['ttft_p95_s']:.2f}", f"{1e3 * f['itl_p50_s']:.1f}", f"{1e3 * f['itl_p95_s']:.1f}"]
        table.add_row(path, str(f["rounds"]), *times, f"{f['attained']:.0%}")
    console.print(table)


@click.command()
@click.option("--graph", "graph_file", type=click.Path(dir_okay=False, path_type=Path), default=DEFAULT_GRAPH, show_default=True)
@click.option("--url", help="Use the graph already running at this URL instead of starting one.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key of the graph; repeatable.")
@click.option("--sessions", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds of each session.")
@click.option("--words", type=click.IntRange(min=1), default=300, show_default=True, help="Mean new words of a round.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), default=0.5, show_default=True, help="Sessions a second.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=16, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--json", "json_file", metavar="FILE", help="Write the figures as JSON; '-' is standard output.")
def main(
    graph_file: Path, url: str | None, sets: tuple[str, ...], sessions: int, rounds: int, words: int, rate: float,
    max_tokens: int, seed: int, json_file: str | None,
) -> None:  # fmt: skip
    """Measure TTFT and ITL by path. Exits with 1 when a round fails, with 2 when it cannot start."""
    console = make_console(stderr=json_file == "-")

    async def run() -> tuple[list[RoundResult], Graph]:
        async with (
            open_target(graph_file, url, sets, console) as target,
            Client(target.url, target.graph.model.served_name) as client,
        ):
            load = {"sessions": sessions, "rounds": rounds, "words": words, "rate": rate, "max_tokens": max_tokens}
            return await run_sessions(client, random.Random(seed), **load), target.graph  # type: ignore[arg-type]

    with plain_errors():
        results, graph = asyncio.run(run())
    figures = by_path(results, graph)
    print_figures(console, figures)
    failures = [f"{r.session} round {r.number}: {r.error}" for r in results if r.error is not None]
    for failure in failures:
        console.print(failure, markup=False)
    write_json({"paths": figures, "failed": len(failures)}, json_file)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
