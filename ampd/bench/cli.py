"""The commands `ampd bench text` and `ampd demo`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ampd.bench.demo import PlayedRound, play
from ampd.bench.demo_report import demo_json, print_demo
from ampd.bench.target import DEFAULT_GRAPH, open_target
from ampd.bench.terminal import make_console, rounds_progress
from ampd.bench.text import TextOptions, make_scripts, run_reference, run_text
from ampd.bench.text_report import Summary, as_json, print_report
from ampd.bench.text_trace import load_text_sessions
from ampd.errors import AmpdError

_GRAPH = click.option(
    "--graph", "graph", type=click.Path(dir_okay=False, path_type=Path), default=DEFAULT_GRAPH, show_default=True,
    help="Graph to start; with --url, the graph that runs there.",
)  # fmt: skip
_URL = click.option("--url", help="Use the graph already running at this URL instead of starting one.")
_SET = click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key of the graph; repeatable.")


@click.group()
def bench() -> None:
    """Load, replay and compare."""


@bench.command("text")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@_GRAPH
@_URL
@_SET
@click.option("--compare", is_flag=True, help="Replay through a plain vLLM engine too, and compare every answer.")
@click.option("--sessions", type=click.IntRange(min=1), help="Only the first N sessions.")
@click.option("--rounds", type=click.IntRange(min=1), help="Only the first N rounds of each session.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=16, show_default=True, help="Tokens of each answer.")
@click.option("--max-context", type=click.IntRange(min=1), help="Prompt and answer, tokens; default: the graph's max_model_len.")
@click.option("--concurrency", type=click.IntRange(min=1), default=2, show_default=True, help="Sessions side by side.")
@click.option("--json", "json_file", metavar="FILE", help="Write the result as JSON; '-' is standard output.")
def text(
    folder: Path, graph: Path, url: str | None, sets: tuple[str, ...], compare: bool, sessions: int | None, rounds: int | None,
    max_tokens: int, max_context: int | None, concurrency: int, json_file: str | None,
) -> None:  # fmt: skip
    """Replay a FOLDER of recorded agent sessions (*.jsonl rows {"session", "t_us", "input"}), greedily.

    Exits with 1 when a round fails or an answer differs, with 2 when it cannot start.
    """
    options = TextOptions(max_tokens, max_context, concurrency)
    console = make_console(stderr=json_file == "-")

    async def run() -> tuple[Summary, dict[str, Any]]:
        recorded = load_text_sessions(folder, sessions=sessions, rounds=rounds)
        async with open_target(graph, url, sets, console) as target:
            scripts = make_scripts(recorded, target.graph, target.model, options)
            done, summary = await run_text(target, scripts, options, console)
        # The graph is down by now if it was ours: the reference has the machine to itself.
        if compare:
            console.print(f"{summary.answered} of {summary.rounds} rounds answered by the graph in {summary.seconds:.1f} s")
            took = summary.seconds
            summary = replace(await run_reference(target.graph, target.model, scripts, options, console, done), seconds=took)
        print_report(console, done, summary)
        return summary, as_json(done, summary)

    with plain_errors():
        summary, document = asyncio.run(run())
    write_json(document, json_file)
    sys.exit(0 if summary.ok else 1)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn ampd's own errors into one line on standard error and exit code 2."""
    try:
        yield
    except AmpdError as e:
        click.echo(f"ampd: {e}", err=True)
        sys.exit(2)


def write_json(document: dict[str, Any], file: str | None) -> None:
    """Write a document to a file, or to standard output for '-'."""
    if file == "-":
        click.echo(json.dumps(document, indent=1))
    elif file is not None:
        Path(file).write_text(json.dumps(document, indent=1) + "\n")


@click.command()
@_GRAPH
@_URL
@_SET
@click.option("--sessions", type=click.IntRange(min=2), default=5, show_default=True, help="Agents at once.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=32, show_default=True, help="Tokens of each answer.")
@click.option("--json", "json_file", metavar="FILE", help="Write the rounds as JSON; '-' is standard output.")
def demo(graph: Path, url: str | None, sets: tuple[str, ...], sessions: int, max_tokens: int, json_file: str | None) -> None:
    """Play agents with tools against a graph and show where each round's prefill ran, and why.

    Exits with 1 when a round fails, with 2 when it cannot start.
    """
    console = make_console(stderr=json_file == "-")

    async def run() -> list[list[PlayedRound]]:
        async with open_target(graph, url, sets, console) as target:
            with rounds_progress(console) as progress:
                task = progress.add_task("rounds", total=None)
                return await play(
                    target.url, target.graph, sessions=sessions, max_tokens=max_tokens,
                    total=lambda n: progress.update(task, total=n), done=lambda: progress.advance(task),
                )  # fmt: skip

    with plain_errors():
        played = asyncio.run(run())
    print_demo(console, played)
    document = demo_json(played)
    write_json(document, json_file)
    sys.exit(1 if document["failed"] else 0)
