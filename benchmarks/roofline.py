"""How far a stated roofline is from measured operator tables: `python -m benchmarks.roofline`. Needs the extra `silicon`.

For systems that have both. What is found here is what the estimate of a system without tables can be expected to be off by.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median, quantiles
from typing import Any

import click

from ampd.bench.cli import plain_errors, write_json
from ampd.bench.terminal import make_console, make_table
from ampd.errors import ProfileError
from ampd.profiler.silicon.estimate import silicon_points
from ampd.profiler.silicon.models import load_shape
from ampd.profiler.silicon.roofline import Roofline
from ampd.profiler.silicon.systems import load_system

_SYSTEMS = ("h200_sxm", "h100_sxm", "a100_sxm", "b200_sxm", "gb200", "rtx_pro_6000_server", "l40s")
_MODELS = ("Qwen/Qwen3-32B", "meta-llama/Meta-Llama-3.1-70B", "mistralai/Mixtral-8x7B-v0.1")
_LEAST_KV = 4096


def off(system: str, model: str, tp: int) -> Iterator[tuple[str, float]]:
    """(function, roofline / table - 1) at every point of `ampd profile --silicon`."""
    points = silicon_points(system, model, [tp])
    times = Roofline(load_shape(model), load_system(system), tp)
    for pre in points.prefill:
        yield "T_pre", times.t_pre(pre.l_hist, pre.l_incr) / pre.seconds - 1
    for dec in points.decode:
        yield "T_dec", times.t_dec(dec.batch, dec.context // dec.batch) / dec.seconds - 1
    for mixed in points.mixed:
        yield "T_mixed", times.t_mixed(mixed.batch, mixed.context // mixed.batch, mixed.chunk) / mixed.seconds - 1


def measure(system: str, models: tuple[str, ...], tps: tuple[int, ...]) -> list[dict[str, Any]]:
    """A row a function, over all models and degrees that fit."""
    stated = load_system(system)
    if not stated.has_tables:
        raise ProfileError(f"system: {system} has no tables to compare with; take one of {', '.join(_SYSTEMS)}")
    errors: dict[str, list[float]] = defaultdict(list)
    for model in models:
        for tp in tps:
            if tp <= stated.node.num_gpus_per_node and load_shape(model).kv_capacity(stated, tp) >= _LEAST_KV:
                for function, error in off(system, model, tp):
                    errors[function].append(error)
    return [
        {
            "system": system,
            "function": function,
            "bias": round(median(found), 4),
            "median_error": round(median(map(abs, found)), 4),
            "p95_error": round(quantiles(map(abs, found), n=20)[-1], 4),
            "points": len(found),
        }
        for function, found in errors.items()
    ]


@click.command()
@click.option("--system", "systems", multiple=True, default=_SYSTEMS, show_default=True)
@click.option("--model", "models", multiple=True, default=_MODELS, show_default=True)
@click.option("--tp", "tps", multiple=True, type=click.IntRange(min=1), default=(1, 2, 4, 8), show_default=True)
@click.option("--json", "json_file", metavar="FILE", help="Write the rows as JSON; '-' is standard output.")
def main(systems: tuple[str, ...], models: tuple[str, ...], tps: tuple[int, ...], json_file: str | None) -> None:
    """Compare rooflines with tables."""
    with plain_errors():
        rows = [row for system in systems for row in measure(system, models, tps)]
    table = make_table("roofline / table - 1")
    for name in ("system", "function", "bias", "median error", "p95", "points"):
        table.add_column(name, justify="left" if name in ("system", "function") else "right")
    for row in rows:
        shares = [f"{row[key]:+.0%}" if key == "bias" else f"{row[key]:.0%}" for key in ("bias", "median_error", "p95_error")]
        table.add_row(row["system"], row["function"], *shares, str(row["points"]))
    make_console(stderr=json_file == "-").print(table)
    write_json({"rows": rows}, json_file)


if __name__ == "__main__":
    main()
