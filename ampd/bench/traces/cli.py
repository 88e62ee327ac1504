"""The command `ampd trace`: look at traces, and make them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click

from ampd.bench.cli import write_json
from ampd.bench.terminal import make_console
from ampd.bench.traces import SHAPES, Format, Reading, arriving, gamma, generate, load_trace, recognise, save_rows
from ampd.bench.traces.stats import measure_trace, stats_lines, stats_table
from ampd.errors import ConfigError, SetupError
from ampd.simulator.types import TraceSession

_READING = click.option("--reading", type=click.Choice(get_args(Reading)), default="total", show_default=True,
                        help="Of a generator: the paper's lengths are a session's total, or each round's.")  # fmt: skip
_SEED = click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of a generator and of arrivals.")


@click.group()
def trace() -> None:
    """Show a trace of sessions, or make one."""


@trace.command()
@click.argument("what", metavar="FILE|NAME")
@click.option("--format", "kind", type=click.Choice(["auto", *get_args(Format)]), default="auto", show_default=True)
@click.option("--sessions", type=click.IntRange(min=1), default=1000, show_default=True, help="Of a generator: how many to draw.")
@_READING
@_SEED
@click.option("--json", "json_file", metavar="FILE", help="Write the figures as JSON; '-' is standard output.")
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Draw the distributions, as FILE.png, .svg or .pdf.")  # fmt: skip
def show(
    what: str, kind: str, sessions: int, reading: Reading, seed: int, json_file: str | None, plot_file: Path | None
) -> None:  # fmt: skip
    """Rounds, lengths, gaps and reuse of a trace.

    FILE: rows of lengths, a Mooncake trace, AIPerf's multi-turn input, or Weka's agentic traces (a file or a folder of them).
    NAME: toolbench, gaia, hotpotqa or dureader, generated with the paper's means.
    """
    found, title = _find(what, kind, sessions, reading, seed)
    console = make_console(stderr=json_file == "-")
    stats = measure_trace(found)
    console.print(stats_table(stats, title))
    for line in stats_lines(stats):
        console.print(line, highlight=False, soft_wrap=True)
    write_json({"trace": title, **stats.as_json()}, json_file)
    if plot_file is not None:
        _draw(found, f"{title}: {len(found):,} sessions", plot_file)
        console.print(f"{plot_file}: drawn", highlight=False, soft_wrap=True)


@trace.command()
@click.argument("name", type=click.Choice(list(SHAPES)))
@click.option("--sessions", type=click.IntRange(min=1), required=True, help="How many.")
@click.option("--rate", type=float, required=True, metavar="R", help="Sessions a second.")
@click.option("--cv", type=float, default=1.0, show_default=True,
              help="Coefficient of variation of the times between arrivals: 1 is Poisson, 2 to 4 is bursty.")  # fmt: skip
@_READING
@_SEED
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, metavar="FILE", help="The JSONL to write.")
def make(name: str, sessions: int, rate: float, cv: float, reading: Reading, seed: int, out: Path) -> None:
    """Draw sessions like those of the paper's trace NAME and write them, arrivals included. The same seed writes the same bytes."""
    made = arriving(generate(name, sessions, seed, reading=reading), gamma(rate, cv, sessions, seed))
    save_rows(made, out)
    rounds = sum(len(session.rounds) for session in made)
    click.echo(f"{out}: {sessions:,} sessions, {rounds:,} rounds, {made[-1].arrives_s:,.0f} s", err=True)


def _find(what: str, kind: str, sessions: int, reading: Reading, seed: int) -> tuple[list[TraceSession], str]:
    """The sessions, and what they are."""
    if what in SHAPES and kind == "auto":
        return generate(what, sessions, seed, reading=reading), f"{what} (generated, seed {seed}, lengths by {reading})"
    path = Path(what)
    if not path.exists():
        raise ConfigError(f"{what}: no such file, and no generator; generators are {', '.join(SHAPES)}")
    format = next((f for f in get_args(Format) if f == kind), None) or recognise(path)
    return load_trace(path, format), f"{path.name or path} ({format})"


def _draw(sessions: Sequence[TraceSession], title: str, file: Path) -> None:
    try:
        from ampd.bench.traces.plot import draw_trace
    except ImportError as e:
        raise SetupError(f"--plot needs matplotlib ({e}); install it with: pip install 'ampd[plots]'") from None
    draw_trace(sessions, title, file)
