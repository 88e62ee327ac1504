"""The command `ampd profile`."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from pathlib import Path

import click
from rich.console import Console

from ampd.bench.terminal import make_console
from ampd.cli.lazy import LazyGroup
from ampd.config import load_graph
from ampd.cost_model import Profile, save_profile
from ampd.profiler.forecast import cost_guess, expected_run_s
from ampd.profiler.journal import journal_path, kept_samples
from ampd.profiler.report import fits_table
from ampd.profiler.run import Task, finished, make_task, run_task
from ampd.profiler.terminal import points_progress

_COMMANDS = {
    "show": "ampd.profiler.show:show",
    "compare": "ampd.profiler.compare:compare",
    "check": "ampd.profiler.check:check",
}
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group(cls=LazyGroup, lazy=_COMMANDS, invoke_without_command=True)
@click.option("--graph", "graph_file", type=_FILE, default="configs/local-cpu.yaml", show_default=True,
              help="Its first prefill and decode worker are measured.")  # fmt: skip
@click.option("--out", type=_FILE, metavar="PROFILE", help="The profile.json to write.")
@click.option("--quick", is_flag=True, help="Fewer points and repeats: at most three minutes on a small CPU machine.")
@click.option("--budget", type=click.FloatRange(min=0), metavar="SECONDS",
              help="Repeat nothing once so long has been measured: what has a sample by then has to do.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print the points and the expected time, and stop. No engine is started.")
@click.option("--fresh", is_flag=True, help="Measure everything anew, whatever an earlier run has left.")
@click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="Override a key of the graph; repeatable.")
@click.option("--silicon", metavar="SYSTEM", help="Estimate from published tables instead: a system's name, or its YAML file.")
@click.option("--model", metavar="M", help="With --silicon: the model.")
@click.option("--tp", default="1", show_default=True, metavar="1,2,..", help="With --silicon: tensor-parallel degrees.")
@click.option("--block-size", type=click.IntRange(min=1), default=32, show_default=True, help="With --silicon: KV block, tokens.")
@click.option("--name", metavar="SERVED", help="With --silicon: the model's name in the graphs that will use the profile.")
@click.pass_context
def profile(
    ctx: click.Context,
    graph_file: Path,
    out: Path | None,
    quick: bool,
    budget: float | None,
    dry_run: bool,
    fresh: bool,
    sets: tuple[str, ...],
    silicon: str | None,
    model: str | None,
    tp: str,
    block_size: int,
    name: str | None,
) -> None:
    """Measure T_pre, T_dec, T_mixed and T_kv of a graph's engines, fit them, and write profile.json.

    The machine should have nothing else to do meanwhile. A run that is interrupted goes on with the same command.
    """
    if ctx.invoked_subcommand is not None:
        return
    if out is None and not dry_run:
        raise click.UsageError("Missing option '--out': the profile.json to write")
    if silicon is not None:
        if model is None or out is None:
            raise click.UsageError("--silicon needs --model and --out")
        _estimate(silicon, model, tp, block_size, name, out)
        return
    if model is not None:
        raise click.UsageError("--model goes with --silicon; an engine's model is the graph's: --set model.path=...")
    console = make_console(stderr=True)
    task = make_task(load_graph(graph_file, sets), quick, budget)
    if dry_run:
        _dry_run(make_console(), task, out)
    elif out is not None:
        _measure(console, task, out, fresh)


def _estimate(silicon: str, model: str, tp: str, block_size: int, name: str | None, out: Path) -> None:
    from ampd.profiler.silicon import parse_tps, silicon_profile

    made = silicon_profile(silicon, model, parse_tps(tp), block_size=block_size, served_name=name)
    save_profile(made, out)
    console = make_console(stderr=True)
    console.print(fits_table(made))
    console.print(f"{out}: written, an estimate", highlight=False)


def _measure(console: Console, task: Task, out: Path, fresh: bool) -> None:
    started = time.monotonic()
    done = None if fresh else finished(task, out)
    if done is not None:
        console.print(f"{out}: has all points of these engines already; --fresh measures them anew", highlight=False)
        return
    try:
        measured = asyncio.run(_run(console, task, out, fresh))
    except (KeyboardInterrupt, asyncio.CancelledError) as e:
        kept = journal_path(out)
        console.print(f"interrupted: {kept_samples(kept)} samples are kept in {kept}; the same command goes on", highlight=False)
        raise SystemExit(130 if isinstance(e, KeyboardInterrupt) else 143) from None
    console.print(fits_table(measured))
    console.print(f"{out}: written after {time.monotonic() - started:.0f} s", highlight=False)


async def _run(console: Console, task: Task, out: Path, fresh: bool) -> Profile:
    running = asyncio.current_task()
    if running is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
    with points_progress(console) as progress:
        return await run_task(
            task, out, fresh=fresh, progress=progress, note=lambda text: console.print(text, highlight=False, soft_wrap=True)
        )


def _dry_run(console: Console, task: Task, out: Path | None) -> None:
    """Every point, how many of each kind, and the time."""
    for kind, count in Counter(spot.kind for spot in task.spots).items():
        args = ", ".join("+".join(map(str, s.args)) if kind == "prefill" else "x".join(map(str, s.args))
                         for s in task.spots if s.kind == kind)  # fmt: skip
        console.print(f"{kind}: {count} points: {args}", highlight=False, soft_wrap=True)
    low, high = expected_run_s(task.spots, task.plan, cost_guess(task.graph, task.model), task.prefill.tensor_parallel)
    limits = task.limits
    pool = "unknown until the engines start" if limits.kv_decode is None else f"about {limits.kv_decode:,} tokens"
    console.print(
        f"bounds: prompts to {limits.longest:,} tokens, KV pool {pool}, chunks to {limits.prefill_chunk}", highlight=False
    )
    if out is not None and (kept := kept_samples(journal_path(out))):
        console.print(f"kept of an earlier run: {kept} samples, which will not be taken again", highlight=False)
    console.print(
        f"{len(task.spots)} points, {task.plan.least} to {task.plan.most} samples each ({task.mode}): "
        f"about {low:.0f} to {high:.0f} s, engine start included",
        highlight=False,
    )
