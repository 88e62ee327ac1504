"""The commands `ampd sim run`, `ampd sim sweep` and `ampd sim report`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

import click

from ampd.bench.terminal import make_console
from ampd.cli.options import graph_argument, set_option
from ampd.config import load_graph
from ampd.errors import ConfigError, SetupError
from ampd.simulator.commands.cli_values import pairs_of, policy_keys, read_rates, read_vary
from ampd.simulator.commands.render import print_run, sweep_progress, sweep_table
from ampd.simulator.commands.run import rounds_csv, run_document, run_once
from ampd.simulator.commands.scenario import Rules, check_form, deployment_name, load_scenario
from ampd.simulator.commands.sweep import Sweep, run_sweep
from ampd.simulator.commands.sweep_journal import open_sweep_journal, sweep_journal_path
from ampd.simulator.commands.workload import Workload
from ampd.simulator.experiments.paper_journal import code_digest
from ampd.simulator.results.chrome_trace import ChromeTrace
from ampd.simulator.results.report_rows import load_rows, rows_csv

_FILE = click.Path(dir_okay=False, path_type=Path)
_duration = click.option(
    "--duration", "duration_s", type=float, help="Seconds in which sessions arrive.  [default: 600, or a file once]"
)
_rounds = click.option("--rounds", type=int, help="Instead of --duration: sessions of so many rounds in all.")
_warm_up = click.option(
    "--warm-up", "warm_s", type=float, help="Seconds before rounds are counted.  [default: 2.5 session lifetimes]"
)
_cv = click.option(
    "--cv", type=float, default=1.0, show_default=True, help="Of the times between arrivals: 1 Poisson, 2 to 4 bursts."
)
_reading = click.option(
    "--reading", type=click.Choice(["total", "round"]), default="total", show_default=True,
    help="The paper's lengths are a session's, or each round's.",
)  # fmt: skip
_targets = click.option("--targets", default="", help="tight, middle or loose: targets by rule.  [default: the graph's]")


@click.group()
def sim() -> None:
    """Simulate a graph: the same policies and cost functions on a virtual clock."""


@sim.command("run")
@graph_argument
@set_option
@click.option("--trace", required=True, help="toolbench, gaia, hotpotqa, dureader, or a trace file.")
@click.option("--rate", type=float, help="Sessions a second.  [default: a file's own times]")
@click.option("--policy", default="", help="The graph's by default.")
@click.option("--deployment", default="", help="As 'P:<TP=2,DP=3> D:<TP=4,DP=2>'; the graph's workers by default.")
@click.option("--seed", type=int, default=1, show_default=True)
@_duration
@_rounds
@_warm_up
@_cv
@_reading
@_targets
@click.option("--json", "json_file", metavar="FILE", help="Write the result as JSON; '-' is standard output.")
@click.option("--csv", "csv_file", type=_FILE, help="Write every round.")
@click.option("--chrome-trace", "trace_file", type=_FILE, help="Write a timeline for ui.perfetto.dev.")
def run_command(
    graph_file: str, sets: tuple[str, ...], trace: str, rate: float | None, policy: str, deployment: str, seed: int,
    duration_s: float | None, rounds: int | None, warm_s: float | None, cv: float, reading: Literal["total", "round"],
    targets: str, json_file: str | None, csv_file: Path | None, trace_file: Path | None,
) -> None:  # fmt: skip
    """Simulate one load on a graph.

    Exit code 2, and one line, for what cannot be simulated.
    """
    workload = Workload(trace, rate, duration_s, rounds, reading, cv)
    workload.check()
    _check_warm_up(warm_s)
    check_form(policy)
    scenario = load_scenario(load_graph(graph_file, sets))
    sessions, end_s = workload.sessions(seed)
    setup = scenario.setup(Rules(policy, policy_keys(sets) if policy else (), deployment, targets), sessions)
    sink = None if trace_file is None else ChromeTrace(setup.groups)
    done = run_once(setup, scenario.cost, sessions, end_s, seed, warm_s, sink)
    names: dict[str, Any] = {
        "hardware": scenario.profile.meta.device, "model": scenario.profile.meta.model, "trace": workload.name,
        "policy": policy or setup.policy.name, "deployment": deployment_name(setup.groups), "rate": rate, "seed": seed,
    }  # fmt: skip
    at = "at the trace's own times" if rate is None else f"at {rate:g} sessions/s"
    title = f"{names['policy']}, {names['deployment']}, {names['model']} on {names['hardware']}, {workload.name} {at}"
    print_run(make_console(stderr=json_file == "-"), done, title)
    _write(json_file, json.dumps(run_document(done, names), indent=1) + "\n")
    if csv_file is not None:
        _write(str(csv_file), rounds_csv(done))
    if trace_file is not None and sink is not None:
        try:
            sink.write(trace_file)
        except OSError as e:
            raise SetupError(f"{trace_file}: cannot be written: {e.strerror}") from None


@sim.command("sweep")
@graph_argument
@set_option
@click.option("--trace", "traces", multiple=True, required=True, help="A generator or a file; may be repeated.")
@click.option("--rates", required=True, help="Sessions a second: 0.5,1,2 or from:to:step.")
@click.option("--policy", "policies", multiple=True, default=("",), help="May be repeated; the graph's by default.")
@click.option("--deployment", "deployments", multiple=True, default=("",), help="May be repeated; the graph's workers by default.")
@click.option("--seeds", type=int, default=3, show_default=True, help="Runs of each point, which give its confidence interval.")
@click.option(
    "--vary", "varied", multiple=True, metavar="KEY=V,V", help="Sensitivity: a key of section policy, e.g. alpha=0.8,0.9."
)
@click.option("--ablation", is_flag=True, help="Also without routing, without reordering, and without both.")
@_duration
@_rounds
@_warm_up
@_cv
@_reading
@_targets
@click.option("--jobs", type=int, default=os.cpu_count, help="Processes.  [default: the machine's cores]")
@click.option("--out", type=_FILE, required=True, help="JSON; its journal lies beside it.")
@click.option("--csv", "csv_file", type=_FILE, help="Write the rows as CSV too.")
@click.option("--fresh", is_flag=True, help="Forget what was computed before.")
def sweep_command(
    graph_file: str, sets: tuple[str, ...], traces: tuple[str, ...], rates: str, policies: tuple[str, ...],
    deployments: tuple[str, ...], seeds: int, varied: tuple[str, ...], ablation: bool, duration_s: float | None,
    rounds: int | None, warm_s: float | None, cv: float, reading: Literal["total", "round"], targets: str, jobs: int, out: Path,
    csv_file: Path | None, fresh: bool,
) -> None:  # fmt: skip
    """Simulate every policy on every deployment under every trace at every rate, with several seeds.

    A sweep that was interrupted or killed goes on where it was; one that is asked for more computes only that.
    """
    for name, count in (("--seeds", seeds), ("--jobs", jobs)):
        if count < 1:
            raise ConfigError(f"{name} {count}: must be at least 1")
    _check_warm_up(warm_s)
    graph = load_graph(graph_file, sets)
    scenario = load_scenario(graph)
    sweep = Sweep(
        graph=graph.model_dump(mode="json", exclude_unset=True), traces=traces, rates=read_rates(rates),
        pairs=pairs_of(scenario, policies, deployments), seeds=tuple(range(1, seeds + 1)), keys=policy_keys(sets),
        vary=tuple(map(read_vary, varied)), ablation=ablation, duration_s=duration_s, rounds=rounds, warm_s=warm_s,
        reading=reading, cv=cv, targets=targets,
    )  # fmt: skip
    for trace in traces:
        Workload(trace, sweep.rates[0], duration_s, rounds, reading, cv).check()
    files = {trace: [Path(str(graph.profile)), *_files(trace)] for trace in traces}
    codes = {trace: code_digest(files[trace]) for trace in traces}
    console = make_console()
    try:
        with open_sweep_journal(sweep_journal_path(out), fresh) as journal, sweep_progress(console) as progress:
            document = run_sweep(sweep, codes, journal, jobs, progress)
    except KeyboardInterrupt:
        click.echo(f"interrupted: the same command goes on from {sweep_journal_path(out)}", err=True)
        raise SystemExit(130) from None
    _write(str(out), json.dumps(document, indent=1) + "\n")
    if csv_file is not None:
        _write(str(csv_file), rows_csv(document["rows"]))
    console.print(sweep_table(document["rows"]))


@sim.command("report")
@click.argument("results", metavar="RESULT.json", type=_FILE)
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Folder of the figures.")
@click.option("--rate", type=float, help="What bars show.  [default: each panel's highest rate at which 90 % are attained]")
def report_command(results: Path, out: Path, rate: float | None) -> None:
    """Draw the figures that a sweep's (or the paper experiments') rows hold, as PNG and SVG."""
    rows = load_rows(results)
    try:
        from ampd.simulator.results.report import draw_report
    except ImportError as e:
        raise SetupError(f"figures need matplotlib ({e}): pip install 'ampd[plots]'") from None
    for file in draw_report(rows, out, rate):
        click.echo(file)


def _files(trace: str) -> list[Path]:
    """Those that a trace is read from; none for a generator."""
    path = Path(trace)
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path] if path.is_file() else []


def _check_warm_up(warm_s: float | None) -> None:
    if warm_s is not None and not 0 <= warm_s < float("inf"):
        raise ConfigError(f"--warm-up {warm_s:g}: must be 0 or more seconds")


def _write(file: str | None, text: str) -> None:
    """To standard output for '-'. A file is never seen half written."""
    if file == "-":
        click.echo(text, nl=False)
    elif file is not None:
        path = Path(file)
        part = path.with_name(f".{path.name}.part")
        try:
            part.write_text(text)
            part.replace(path)
        except OSError as e:
            raise SetupError(f"{file}: cannot be written: {e.strerror}") from None
