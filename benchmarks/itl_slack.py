"""A decode batch with local prefills beside it: `python -m benchmarks.itl_slack`, on a real CPU engine.

Four rounds decode while prompts are prefilled one after the other in the same engine, as a decode worker runs them. The ITL target
is a multiple of the batch's ITL without prefills. It is played once for each value of `policy.local_prefill`, same prompts, in
float32: every mode must give the same tokens.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from ampd.bench.cli import plain_errors, write_json
from ampd.bench.terminal import make_console, make_table
from ampd.config import Graph, build_graph
from ampd.launch.preflight import free_ports
from ampd.launch.random_model import build_random_model
from ampd.workers.engines.base import Engine, EngineJob
from ampd.workers.engines.vllm import VllmEngine
from benchmarks.timing import machine

MODES = ("slack", "chunked", "exclusive")
_BATCH, _PROMPT = 4, 128
_VOCABULARY = 8000
_ids = itertools.count()


@dataclass(slots=True)
class Stream:
    """The tokens of one round, and when each of them left."""

    started: float
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.times[0] - self.started

    @property
    def itl_s(self) -> float:
        return (self.times[-1] - self.times[0]) / (len(self.times) - 1)


@dataclass(frozen=True, slots=True)
class Played:
    """One run: the running rounds and the prefills beside them."""

    rounds: list[Stream]
    prefills: list[Stream]

    @property
    def itl_s(self) -> float:
        """Mean ITL of the worst round."""
        return max(r.itl_s for r in self.rounds)

    @property
    def itl_p95_s(self) -> float:
        return float(np.quantile(np.concatenate([np.diff(r.times) for r in self.rounds]), 0.95))

    @property
    def ttft_s(self) -> float:
        return float(np.median([p.ttft_s for p in self.prefills]))

    def answers(self) -> list[list[int]]:
        """All tokens, to be compared."""
        return [s.tokens for s in (*self.rounds, *self.prefills)]


async def stream(engine: Engine, token_ids: Sequence[int], tokens: int, itl_target_s: float | None, first: asyncio.Event) -> Stream:
    """Run one local round; `first` is set when its first token has left."""
    request = {"sampling_options": {"temperature": 0.0}, "stop_conditions": {"max_tokens": tokens, "ignore_eos": True}}
    number = next(_ids)
    job = EngineJob(
        id=f"round-{number}", kind="decode", token_ids=token_ids, request=request, pin=False, itl_target_s=itl_target_s,
        cache_salt=f"salt-{number}",
    )  # fmt: skip
    result = Stream(time.perf_counter())
    async for output in engine.generate(job):
        ids = output.output["token_ids"]
        result.tokens.extend(ids)
        result.times.extend([time.perf_counter()] * len(ids))
        first.set()
    return result


async def play(engine: Engine, prefills: int, prefill_tokens: int, tokens: int, itl_target_s: float | None) -> Played:
    """Start the batch; once it decodes, prefill one prompt after the other."""
    rng = random.Random(0)
    prompts = [[rng.randrange(3, _VOCABULARY) for _ in range(_PROMPT)] for _ in range(_BATCH)]
    long = [[rng.randrange(3, _VOCABULARY) for _ in range(prefill_tokens)] for _ in range(prefills)]
    begun = [asyncio.Event() for _ in prompts]
    rounds = [asyncio.create_task(stream(engine, p, tokens, itl_target_s, first)) for p, first in zip(prompts, begun, strict=True)]
    for first in begun:
        await first.wait()
    done = [await stream(engine, p, 1, itl_target_s, asyncio.Event()) for p in long]
    return Played([await r for r in rounds], done)


def make_graph(model: Path, mode: str, core: str, chunk: int) -> Graph:
    """One decode worker and nothing else."""
    return build_graph(
        {
            "model": {"path": str(model), "served_name": "small", "dtype": "float32", "max_model_len": 8192},
            "policy": {"local_prefill": mode},
            "workers": [{"name": "decode", "role": "decode", "cores": [core], "kv_cache_gib": 1, "prefill_chunk": chunk}],
        }
    )


@asynccontextmanager
async def started(graph: Graph) -> AsyncIterator[Engine]:
    """The graph's one engine."""
    engine = VllmEngine(graph, graph.workers[0], 0, free_ports("127.0.0.1", 1)[0])
    try:
        await engine.start()
        yield engine
    finally:
        await engine.stop()


async def measure(
    model: Path, core: str, chunk: int, factor: float, repeat: int, load: dict[str, int], console: Console
) -> tuple[float, list[dict[str, Any]]]:
    """The ITL of the batch alone, and one row a mode."""
    alone: list[Played] = []
    played: dict[str, list[Played]] = {}
    target_s = 0.0
    for mode in MODES:
        console.print(f"{mode}: an engine starts on core {core}")
        async with started(make_graph(model, mode, core, chunk)) as engine:
            await play(engine, 1, load["prefill_tokens"], load["tokens"], None)  # warm up
            if not alone:
                alone = [await play(engine, 0, 0, load["tokens"], None) for _ in range(repeat)]
                target_s = factor * _median(alone, "itl_s")
            played[mode] = [await play(engine, **load, itl_target_s=target_s) for _ in range(repeat)]
        console.print(f"  mean ITL {1e3 * _median(played[mode], 'itl_s'):.1f} ms, target {1e3 * target_s:.1f} ms")
    right = played[MODES[0]][0].answers()
    equal_alone = all(p.answers() == right[:_BATCH] for p in alone)
    rows: list[dict[str, Any]] = [
        {
            "mode": mode,
            "itl_mean_s": _median(played[mode], "itl_s"),
            "itl_p95_s": _median(played[mode], "itl_p95_s"),
            "itl_target_s": target_s,
            "prefill_ttft_s": _median(played[mode], "ttft_s"),
            "tokens_equal": equal_alone and all(p.answers() == right for p in played[mode]),
        }
        for mode in MODES
    ]
    return _median(alone, "itl_s"), rows


def _median(runs: Sequence[Played], name: str) -> float:
    return float(np.median([getattr(run, name) for run in runs]))


def print_rows(console: Console, rows: list[dict[str, Any]], alone_s: float, load: dict[str, int]) -> None:
    """One line a mode."""
    table = make_table(
        f"{_BATCH} rounds of {load['tokens']} tokens, {load['prefills']} prefills of {load['prefill_tokens']} tokens beside them; "
        f"ITL alone {1e3 * alone_s:.1f} ms"
    )
    for name in ("local_prefill", "mean ITL ms", "ITL p95 ms", "target ms", "within", "prefill TTFT s", "tokens"):
        table.add_column(name, justify="left" if name == "local_prefill" else "right")
    for r in rows:
        times = [f"{1e3 * r[name]:.1f}" for name in ("itl_mean_s", "itl_p95_s", "itl_target_s")]
        within = "yes" if r["itl_mean_s"] <= r["itl_target_s"] else "no"
        table.add_row(r["mode"], *times, within, f"{r['prefill_ttft_s']:.2f}", "equal" if r["tokens_equal"] else "DIFFER")
    console.print(table)


@click.command()
@click.option("--prefills", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--prefill-tokens", type=click.IntRange(min=1), default=2048, show_default=True)
@click.option("--tokens", type=click.IntRange(min=2), default=128, show_default=True, help="Tokens of each running round.")
@click.option("--factor", type=click.FloatRange(min=1), default=3.0, show_default=True, help="ITL target over the ITL alone.")
@click.option("--chunk", type=click.IntRange(min=64), default=512, show_default=True, help="The worker's prefill_chunk.")
@click.option("--repeat", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--core", default="0", show_default=True, help="Core of the engine, in vLLM's notation.")
@click.option("--json", "json_file", metavar="FILE", help="Write the rows as JSON; '-' is standard output.")
def main(
    prefills: int, prefill_tokens: int, tokens: int, factor: float, chunk: int, repeat: int, core: str, json_file: str | None
) -> None:
    """Compare the modes of policy.local_prefill. Exits with 1 when tokens differ, with 2 when an engine cannot start."""
    console = make_console(stderr=json_file == "-")
    load = {"prefills": prefills, "prefill_tokens": prefill_tokens, "tokens": tokens}
    with plain_errors(), tempfile.TemporaryDirectory() as folder:
        model = build_random_model(Path(folder) / "small", "small")
        alone_s, rows = asyncio.run(measure(model, core, chunk, factor, repeat, load, console))
    print_rows(console, rows, alone_s, load)
    console.print(f"medians of {repeat}; {machine()}")
    write_json({"rows": rows, "itl_alone_s": alone_s, **load}, json_file)
    sys.exit(0 if all(r["tokens_equal"] for r in rows) else 1)


if __name__ == "__main__":
    main()
