"""Time of evaluating the cost functions, one call and by array: `python -m benchmarks.cost_model`.

Without `--profile` every function has the most pieces that a fit can get.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import click
import numpy as np

from ampd.bench.cli import write_json
from ampd.bench.terminal import make_console, make_table
from ampd.cost_model import PiecewiseCostModel, load_profile
from ampd.cost_model.arrays import ArrayCostModel
from ampd.cost_model.functions import DecodeFit, FitError, MixedFit, PrefillFit, Segment, TransferFit
from benchmarks.timing import machine, timed

_RANGES = {
    "t_pre": ((0, 32_768), (1, 8192)),
    "t_dec": ((1, 256), (256, 1_000_000)),
    "t_mixed": ((1, 256), (256, 1_000_000), (1, 8192)),
    "t_kv": ((1, 32_768),),
}  # of the arguments that come before theta


def most_pieces() -> PiecewiseCostModel:
    """Functions with five breakpoints."""
    tokens = [Segment(end, 1e-5 * (n + 1), 1e-9) for n, end in enumerate((64, 256, 512, 1024, 4096, None))]
    plain = [Segment(s.up_to, s.each_s) for s in tokens]
    batch = [Segment(end, 1e-4 * (n + 1), 1e-10) for n, end in enumerate((4, 16, 32, 64, 128, None))]
    error, span = FitError(0.0, 0.0, 0), (1, 1)
    return PiecewiseCostModel(
        [PrefillFit(1, 0.01, 1e-7, tokens, span, span, error)],
        [DecodeFit(1, 0.01, 1e-8, batch, span, span, error)],
        [TransferFit(1, 1, "history", 0.001, plain, span, error, block_s=1e-5, block_size=16)],
        [MixedFit(1, 0.01, 1e-4, 1e-8, tokens, span, span, span, error)],
    )


def measure(cost: PiecewiseCostModel, function: str, key: tuple[Any, ...], calls: int, size: int) -> dict[str, Any]:
    """The row of one function."""
    rng, many = random.Random(1), np.random.default_rng(1)
    one: Callable[..., float] = getattr(cost, function)
    args = [[rng.randint(*span) for span in _RANGES[function]] for _ in range(calls)]
    one_s, _ = timed([partial(one, *row, *key) for row in args])
    arrays = [many.integers(*span, size, endpoint=True) for span in _RANGES[function]]
    vectorised = partial(getattr(ArrayCostModel(cost), function), *arrays, *key)
    return {"function": function, "one_call_us": round(1e6 * one_s, 3), "vectorised_ns": round(1e9 * _middle(vectorised) / size, 1)}


def _middle(call: Callable[[], object], repeats: int = 9) -> float:
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds))


@click.command()
@click.option("--profile", "profile_file", metavar="FILE", help="Evaluate this profile's functions, of its first theta.")
@click.option("--calls", type=click.IntRange(min=1), default=20_000, show_default=True, help="Single calls of each function.")
@click.option("--size", type=click.IntRange(min=1), default=100_000, show_default=True, help="Values in an array.")
@click.option("--json", "json_file", metavar="FILE", help="Write the rows as JSON; '-' is standard output.")
def main(profile_file: str | None, calls: int, size: int, json_file: str | None) -> None:
    """Measure the cost functions."""
    cost = load_profile(profile_file).cost_model() if profile_file else most_pieces()
    theta, way = (next(iter(cost.prefill)),), next(iter(cost.transfer), None)
    functions = ["t_pre", "t_dec", "t_mixed", *(["t_kv"] if way else [])]
    rows = [measure(cost, name, way if name == "t_kv" and way else theta, calls, size) for name in functions]
    console = make_console(stderr=json_file == "-")
    console.print(f"one call, median of {calls:,}; a value in an array of {size:,}")
    table = make_table("cost functions")
    for name in ("function", "one call us", "vectorised ns"):
        table.add_column(name, justify="left" if name == "function" else "right")
    for row in rows:
        table.add_row(row["function"], f"{row['one_call_us']:.2f}", f"{row['vectorised_ns']:.0f}")
    console.print(table)
    console.print(machine())
    write_json({"rows": rows}, json_file)


if __name__ == "__main__":
    main()
