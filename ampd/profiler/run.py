"""Measure a graph's engines and fit the cost functions to the medians."""

from __future__ import annotations

import platform
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from ampd.config import Graph
from ampd.cost_model import DecodePoint, KvPoint, Meta, Points, PrefillPoint, Profile
from ampd.cost_model.fitting import fit_profile
from ampd.profiler.grid import Grid, make_grid
from ampd.profiler.jobs import RandomTokens
from ampd.profiler.measure import measure_decode, measure_prefill, measure_transfer
from ampd.profiler.pair import EnginePair, engine_pair

Progress = Callable[[str, int | None], None]  # (what is measured, number of points to come; None: one of them is done)


async def profile_graph(graph: Graph, *, quick: bool, seed: int = 0, progress: Progress = lambda what, total: None) -> Profile:
    """Start the graph's engine pair, measure, stop it, and fit.

    T_pre is measured on the prefill engine and T_dec on the decode engine; both are of one theta until a graph mixes them.
    Raises ConfigError and SetupError when the engines do not start, ProfileError when too few points came out.
    """
    progress("starting engines", 1)
    async with engine_pair(graph) as pair:
        progress("starting engines", None)
        tokens = RandomTokens(pair.model, seed)
        grid = make_grid(pair.prefill.info, quick)
        prefill, decode, kv = await _measure(pair, grid, tokens, progress)
        meta = _meta(pair, grid)
    return fit_profile(meta, Points(prefill, decode, kv))


async def _measure(
    pair: EnginePair, grid: Grid, tokens: RandomTokens, progress: Progress
) -> tuple[list[PrefillPoint], list[DecodePoint], list[KvPoint]]:
    theta_p, theta_d = pair.prefill.info.theta, pair.decode.info.theta
    thetas = {"history": (theta_d, theta_p), "increment": (theta_p, theta_d)}
    progress("KV reads", len(grid.transfer) * grid.repeats)
    reads = await measure_transfer(pair.prefill, pair.decode, grid, tokens, lambda: progress("KV reads", None))
    progress("prefill", len(grid.prefill) * grid.repeats)
    prefills = await measure_prefill(pair.prefill, grid, tokens, lambda: progress("prefill", None))
    progress("decode", len(grid.decode) * grid.decode_repeats)
    steps = await measure_decode(pair.decode, grid, tokens, lambda: progress("decode", None))
    return (
        [PrefillPoint(hist, incr, _mid(s), theta_p) for (hist, incr), s in sorted(prefills.items())],
        [DecodePoint(batch, context, _mid(s), theta_d) for (batch, context), s in sorted(steps.items())],
        [KvPoint(n, direction, _mid(s), *thetas[direction]) for (direction, n), s in sorted(reads.items())],
    )


def _meta(pair: EnginePair, grid: Grid) -> Meta:
    info, graph = pair.prefill.info, pair.graph
    cores = next(w.cores[:1] for w in graph.workers if w.role == "prefill")
    return Meta(
        model=info.model,
        engine=info.engine,
        engine_version=info.version,
        device=f"{_processor()}, cores {cores[0]} of an engine" if cores else _processor(),
        block_size=info.block_size,
        kv_bytes_per_token=info.kv_bytes_per_token,
        kv_capacity_tokens=info.kv_total,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        transport=f"nixl/ucx {graph.transport.ucx_tls or 'default'}, {graph.transport.buffer_device} buffers",
        notes=f"medians of {grid.repeats} repeats (decode {grid.decode_repeats}); dtype {graph.model.dtype}",
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _mid(samples: list[float]) -> float:
    """The median, to the microsecond: more digits would be noise."""
    return round(median(samples), 6)
