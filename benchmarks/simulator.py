"""Speed of the simulator: an hour of agents' sessions on 32 GPUs, and how time grows with it: `python -m benchmarks.simulator`.

Sessions are GAIA-like (11.3 rounds of about 544 new tokens and 47 answered ones, in the mean), arriving as a Poisson process. The
same load with ten times the tokens an answer shows that time goes with rounds and not with decode steps.
"""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ampd.bench.cli import write_json
from ampd.bench.terminal import make_console, make_table
from ampd.bench.traces import generate, sustained
from ampd.config.schema import Policy
from ampd.cost_model import load_profile
from ampd.policy.types import CostModel
from ampd.simulator.forms import COLOCATED, FORMS, setup_for
from ampd.simulator.simulate import simulate
from ampd.simulator.types import Group, Setup, TraceSession
from benchmarks.timing import machine

_PROFILE = Path(__file__).parents[1] / "configs/profiles/llama-3.1-70b-h200.json"
_TTFT_S, _ITL_S, _KV_TOKENS = 1.0, 0.05, 1_000_000


def deployment(form: str, theta: int, gpus: int) -> Setup:
    """Half of the GPUs for prefill, half for decode."""
    each = gpus // theta // 2
    groups = (Group("prefill", theta, each, _KV_TOKENS), Group("decode", theta, each, _KV_TOKENS))
    return setup_for(form, groups, _TTFT_S, _ITL_S, policy=Policy(name="predictive"))


def longer(sessions: list[TraceSession], factor: int) -> list[TraceSession]:
    """The same sessions with answers so many times as long; prompts stay as they are."""
    return [replace(s, rounds=tuple([replace(r, output=r.output * factor) for r in s.rounds])) for s in sessions]


def measure(name: str, setup: Setup, cost: CostModel, sessions: list[TraceSession]) -> dict[str, Any]:
    """The row of one simulation."""
    before = _peak_mb()
    began = time.perf_counter()
    outcome = simulate(setup, cost, sessions)
    seconds = time.perf_counter() - began
    rounds = len(outcome.records)
    return {
        "load": name,
        "rounds": rounds,
        "tokens": int(outcome.records.output.sum()),
        "virtual_s": round(outcome.ended_s),
        "events": outcome.counts["events"],
        "seconds": round(seconds, 2),
        "us_a_round": round(1e6 * seconds / rounds, 1),
        "rounds_a_second": round(rounds / seconds),
        "grown_mb": round(_peak_mb() - before, 1),
    }


def _peak_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 / (1024 if sys.platform == "darwin" else 1)


@click.command()
@click.option("--form", type=click.Choice([f for f in FORMS if f not in COLOCATED]), default="ampd", show_default=True)
@click.option("--theta", type=click.IntRange(min=1), default=2, show_default=True, help="Tensor parallel degree of each worker.")
@click.option("--gpus", type=click.IntRange(min=2), default=32, show_default=True)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), default=2.0, show_default=True, help="Sessions a second.")
@click.option("--hours", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, help="Virtual time.")
@click.option(
    "--profile", "profile_file", metavar="FILE", default=str(_PROFILE), help="Cost functions [default: Llama-3.1-70B, H200]."
)
@click.option("--json", "json_file", metavar="FILE", help="Write the rows as JSON; '-' is standard output.")
def main(form: str, theta: int, gpus: int, rate: float, hours: float, profile_file: str, json_file: str | None) -> None:
    """Measure the simulator."""
    cost = load_profile(profile_file).cost_model()
    setup = deployment(form, theta, gpus)
    console = make_console(stderr=json_file == "-")
    each = setup.groups[0].replicas
    console.print(f"{form}, {each} + {each} workers of {theta} GPUs, {rate:g} sessions/s, {hours:g} h of virtual time")
    table = make_table("simulator")
    columns = ("load", "rounds", "tokens", "events", "seconds", "us a round", "rounds a second", "grown mb")
    for column in columns:
        table.add_column(column, justify="left" if column == "load" else "right")
    rows = []
    sessions = sustained(generate("gaia", max(1, round(3600 * hours * rate)), seed=1), rate, 3600 * hours, seed=1)
    quarter = [s for s in sessions if s.arrives_s < 900 * hours]
    loads = ((f"{hours / 4:g} h", quarter), (f"{hours / 4:g} h, answers x 4", longer(quarter, 4)), (f"{hours:g} h", sessions))
    for name, load in loads:
        row = measure(name, setup, cost, load)
        rows.append(row)
        table.add_row(*[f"{v:,}" if isinstance(v := row[c.replace(" ", "_")], int) else str(v) for c in columns])
    console.print(table)
    console.print(machine())
    write_json({"rows": rows}, json_file)


if __name__ == "__main__":
    main()
