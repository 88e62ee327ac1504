"""The three measurements: prefill over (history, increment), decode over (batch, context), KV reads in both directions.

Repeats are the outer loop and the order of points is shuffled in each, so that a slow minute of the machine spreads over all
points instead of bending the curve at one.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import TypeVar

from ampd.errors import SetupError
from ampd.policy.types import Direction
from ampd.profiler.grid import Grid
from ampd.profiler.jobs import Ran, RandomTokens, decode_job, prefill_job, run_job
from ampd.workers.engines.base import Engine

Done = Callable[[], None]
Point = TypeVar("Point")

_FORGET_TRIES = 100
_DECODE_STEPS = 16  # tokens of each sequence in a decode measurement


async def measure_prefill(engine: Engine, grid: Grid, tokens: RandomTokens, done: Done) -> dict[tuple[int, int], list[float]]:
    """T_pre: seconds from submission to the first token, by (l_hist, l_incr). The history comes from the engine's prefix cache."""
    base = tokens.take(max(h for h, _ in grid.prefill))
    samples: dict[tuple[int, int], list[float]] = defaultdict(list)
    await run_job(engine, prefill_job(base + tokens.take(1)))
    for l_hist, l_incr in _shuffled(grid.prefill, grid.repeats):
        ran = await run_job(engine, prefill_job(base[:l_hist] + tokens.take(l_incr)))
        if ran.cached_tokens == l_hist:
            samples[l_hist, l_incr].append(ran.first_s)
        else:  # the base was evicted meanwhile: compute it again and leave this sample out
            await run_job(engine, prefill_job(base + tokens.take(1)))
        done()
    return samples


async def measure_decode(engine: Engine, grid: Grid, tokens: RandomTokens, done: Done) -> dict[tuple[int, int], list[float]]:
    """T_dec: seconds of one step, by (batch, context in all). Every sequence has KV of its own, as real sessions have."""
    samples: dict[tuple[int, int], list[float]] = defaultdict(list)
    for batch, context in _shuffled(grid.decode, grid.decode_repeats):
        prompts = [tokens.take(context) for _ in range(batch)]
        # Prefill them first, so that the measured jobs start together from the prefix cache.
        for prompt in prompts:
            await run_job(engine, prefill_job(prompt))
        steps = _DECODE_STEPS + batch
        ran = await asyncio.gather(*(run_job(engine, decode_job(p, steps)) for p in prompts))
        if step := _step(ran):
            samples[batch, batch * (context + steps // 2)].append(step)
        done()
    return samples


def _step(ran: Sequence[Ran]) -> float | None:
    """Median time between tokens while all sequences were decoding; None when they never were together."""
    begin = max(r.stamps[0][0] for r in ran)
    end = min(r.stamps[-1][0] for r in ran)
    gaps: list[float] = []
    for r in ran:
        inside = [(at, n) for at, n in r.stamps if begin <= at <= end]
        gaps += [(b - a) / n for (a, _), (b, n) in itertools.pairwise(inside)]
    return median(gaps) if gaps else None


async def measure_transfer(
    prefill: Engine, decode: Engine, grid: Grid, tokens: RandomTokens, done: Done
) -> dict[tuple[Direction, int], list[float]]:
    """T_kv: seconds of one read through the real transport, by (direction, tokens read).

    One prompt serves both: D computes and pins it, P reads it (history) and pins the same KV, D forgets and reads it back
    (increment).
    """
    samples: dict[tuple[Direction, int], list[float]] = defaultdict(list)
    await _read_both_ways(prefill, decode, tokens.take(grid.transfer[0]), tokens)  # the first read of a peer pays a handshake
    for size in _shuffled(grid.transfer, grid.repeats):
        for direction, count, seconds in await _read_both_ways(prefill, decode, tokens.take(size), tokens):
            samples[direction, count].append(seconds)
        done()
    return samples


async def _read_both_ways(
    prefill: Engine, decode: Engine, prompt: list[int], tokens: RandomTokens
) -> list[tuple[Direction, int, float]]:
    held = await run_job(decode, decode_job(prompt, 2, pin=True))
    params, pinned = _pin(held)
    usable = min(pinned, len(prompt))
    longer = prompt + tokens.take(1)
    history = await run_job(prefill, prefill_job(longer, source=params, source_tokens=usable, pin=True))
    params, pinned = _pin(history)
    await _forget(decode)
    increment = await run_job(decode, decode_job(longer, 2, source=params, source_tokens=pinned))
    reads: tuple[tuple[Direction, Ran], ...] = (("history", history), ("increment", increment))
    facts = [(direction, ran.kv) for direction, ran in reads if ran.kv is not None]
    return [(direction, kv.read_tokens, kv.read_s) for direction, kv in facts if kv.read_tokens and not kv.read_failed]


async def _forget(engine: Engine) -> None:
    """Empty the prefix cache. The engine does that only once nothing is pinned, which it learns a little after the read's end."""
    for _ in range(_FORGET_TRIES):
        if not engine.load().kv_used:
            break
        await asyncio.sleep(0.05)
    await engine.reset_prefix_cache()


def _pin(ran: Ran) -> tuple[dict[str, object], int]:
    if ran.last is None or ran.last.params is None:
        raise SetupError("the engine kept no KV for a reader: is its KV connector configured?")
    return ran.last.params, ran.last.pinned_tokens


def _shuffled(points: Sequence[Point], repeats: int) -> Iterator[Point]:
    for repeat in range(repeats):
        yield from random.Random(repeat).sample(points, len(points))
