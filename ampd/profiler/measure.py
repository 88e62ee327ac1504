"""One sample of one point on a live engine pair.

Cache effects are kept out, not averaged: a prefill's increment is fresh tokens each time and its history must come from the prefix
cache to the token; a KV read goes to a cache salt that was never used, so that its reader holds nothing of it; a decode batch's
prompts are in the cache, so that all sequences start together. A sample of which the engine says otherwise is spoilt.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import Sequence
from statistics import median

from ampd.errors import SetupError
from ampd.profiler.bases import Bases
from ampd.profiler.jobs import Batch, Ran, RandomTokens, decode_job, prefill_job, run_job
from ampd.profiler.noise import Watch
from ampd.profiler.pace import Engine, Pace
from ampd.profiler.pair import EnginePair
from ampd.profiler.sampling import CHECK_PLAN, Measure, Plan, Progress, sample
from ampd.profiler.spots import DECODE_STEPS, MIXED_LEAD, MIXED_PROMPTS, Kind, Spot

_RETRIES = 2
_NOISY_SHARE = 4
_REFERENCE_TOKENS = 64
_ENGINES: dict[Kind, tuple[Engine, ...]] = {
    "prefill": ("prefill",),
    "decode": ("decode",),
    "mixed": ("decode",),
    "history": (),  # reads hardly suffer from what slows a matrix unit
    "increment": (),
}
_READS = 3  # of which a T_kv sample is the median: the end of a read is seen only between two engine steps
# Beyond what is measured: sequences start within a few steps of each other.
_MARGIN_STEPS = 4
_MIXED_TOKENS = 64  # a mixed measurement's batch is ended once its prompts are done, long before this


class Bench:
    """Measures the points of `spots` on a pair. `prepare` comes first."""

    def __init__(self, pair: EnginePair, spots: Sequence[Spot], seed: int = 0) -> None:
        self._pair = pair
        self._tokens = RandomTokens(pair.model, seed)
        self.spots = spots
        self._bases = Bases(spots, self._tokens)

    async def prepare(self) -> None:
        """Fill the caches with the bases and run everything once: first uses allocate memory, and first reads shake hands."""
        await self._fill_prefill()
        for base in self._bases.decode:
            await run_job(self._pair.decode, prefill_job(base))
        for kind in ("history", "increment", "decode", "mixed", "prefill"):
            cheapest = min((s for s in self.spots if s.kind == kind), key=lambda s: s.args, default=None)
            if cheapest is not None:
                await self.measure(cheapest)

    async def measure(self, spot: Spot) -> float | None:
        """Seconds of the cost function at a point; None when the sample was spoilt. Raises SetupError when no KV can be read."""
        match spot.kind:
            case "prefill":
                return await self._prefill(*spot.args)
            case "decode":
                return await self._decode(*spot.args)
            case "mixed":
                return await self._mixed(*spot.args)
            case "history":
                reads = [await self._history(*spot.args) for _ in range(_READS)]
            case "increment":
                reads = [await self._increment(*spot.args) for _ in range(_READS)]
        whole = [seconds for seconds in reads if seconds is not None]
        return median(whole) if whole else None

    async def reference(self, engine: Engine) -> float:
        """Seconds of a short prefill."""
        return (await run_job(getattr(self._pair, engine), prefill_job(self._tokens.take(_REFERENCE_TOKENS)))).first_s

    async def _prefill(self, l_hist: int, l_incr: int) -> float | None:
        """From submission to the first token."""
        ran = await run_job(self._pair.prefill, prefill_job(self._bases.prefill[:l_hist] + self._tokens.take(l_incr)))
        if ran.cached_tokens == l_hist:
            return ran.first_s
        await self._fill_prefill()  # the base was evicted meanwhile
        return None

    async def _fill_prefill(self) -> None:
        await run_job(self._pair.prefill, prefill_job(self._bases.prefill + self._tokens.take(1)))

    async def _decode(self, batch: int, context: int) -> float | None:
        """A step without any prefill in it."""
        prompts = self._prompts(batch, context)
        jobs = [decode_job(prompt, DECODE_STEPS + _MARGIN_STEPS + batch // 4) for prompt in prompts]
        ran = await asyncio.gather(*(run_job(self._pair.decode, job) for job in jobs))
        return _step(ran) if self._all_cached(ran, context) else None

    async def _mixed(self, batch: int, context: int, chunk: int) -> float | None:
        """A step of the batch that also computes a fresh prompt of `chunk` tokens, whole."""
        engine = self._pair.decode
        prompts = self._prompts(batch, context)
        firsts = []
        async with Batch(engine, [decode_job(prompt, _MIXED_TOKENS) for prompt in prompts]) as running:
            for _ in range(MIXED_PROMPTS):
                await running.advance(MIXED_LEAD)
                ran = await run_job(engine, prefill_job(self._tokens.take(chunk)))
                firsts.append(ran.first_at)
            await running.advance(1)
            whole = running.whole
        gaps = [gap for at in firsts if (gap := _gap_ending(running.runs, at)) is not None]
        return median(gaps) if whole and len(gaps) == len(firsts) and self._all_cached(running.runs, context) else None

    async def _history(self, tokens: int) -> float | None:
        """P reads from D."""
        prompt = self._bases.decode[0][:tokens]
        params, pinned = _pin(await run_job(self._pair.decode, decode_job(prompt, 2, pin=True)))
        job = prefill_job(prompt + self._tokens.take(1), source=params, source_tokens=min(pinned, tokens), salt=_salt())
        return _read_s(await run_job(self._pair.prefill, job), tokens)

    async def _increment(self, tokens: int) -> float | None:
        """D reads from P."""
        prompt = self._bases.prefill[: tokens - 1] + self._tokens.take(1)
        params, pinned = _pin(await run_job(self._pair.prefill, prefill_job(prompt, pin=True)))
        job = decode_job(prompt, 2, source=params, source_tokens=pinned, salt=_salt())
        return _read_s(await run_job(self._pair.decode, job), tokens)

    def _prompts(self, batch: int, context: int) -> list[list[int]]:
        """Whole blocks and one token, which is all that is left to compute."""
        block = self._pair.decode.info.block_size
        whole = max(block, context // block * block)
        return [base[:whole] + self._tokens.take(1) for base in self._bases.decode[:batch]]

    def _all_cached(self, ran: Sequence[Ran], context: int) -> bool:
        block = self._pair.decode.info.block_size
        return all(r.cached_tokens >= max(block, context // block * block) for r in ran)


def _step(ran: Sequence[Ran]) -> float | None:
    """Median time between tokens while all sequences were decoding; None when they never were together."""
    begin = max(r.first_at for r in ran)
    end = min(r.stamps[-1][0] for r in ran)
    gaps: list[float] = []
    for r in ran:
        inside = [(at, n) for at, n in r.stamps if begin <= at <= end]
        gaps += [(b - a) / n for (a, _), (b, n) in itertools.pairwise(inside)]
    return median(gaps) if gaps else None


def _gap_ending(runs: Sequence[Ran], at: float) -> float | None:
    """Median over the sequences of the time between the two tokens of which the second left nearest to `at`."""
    gaps = []
    for run in runs:
        (a, _), (b, n) = min(itertools.pairwise(run.stamps), key=lambda pair: abs(pair[1][0] - at))
        if n != 1:
            return None  # the reader was late: two steps came at once
        gaps.append(b - a)
    return median(gaps)


def _read_s(ran: Ran, tokens: int) -> float | None:
    """Seconds of a read; None unless it moved all the tokens, but for one that was computed."""
    kv = ran.kv
    if kv is None or kv.read_failed or abs(kv.read_tokens - tokens) > 1:
        return None
    return kv.read_s


def _pin(ran: Ran) -> tuple[dict[str, object], int]:
    if ran.last is None or ran.last.params is None:
        raise SetupError("the engine kept no KV for a reader: is its KV connector configured?")
    return ran.last.params, ran.last.pinned_tokens


def _salt() -> str:
    return uuid.uuid4().hex


def watched(bench: Bench, watch: Watch, plan: Plan) -> Measure:
    """`bench.measure` at the engines' usual pace: a sample that lost the CPU to others, or ends with a slow engine, is spoilt.

    A moment of noise is waited out. Beyond `_RETRIES` of a point lost to others, or once one in `_NOISY_SHARE` points has met with
    that, the machine is noisy all the time: its report says so, and medians have to do.
    """
    retries: Counter[Spot] = Counter()
    redone: Counter[Spot] = Counter()
    most = max(_RETRIES, len(bench.spots) // _NOISY_SHARE)
    pace = watch.pace = Pace(bench.reference)

    async def measure(spot: Spot) -> float | None:
        engines = _ENGINES[spot.kind]
        await pace.settle(engines, plan.patience_s)
        with watch.sample(judged=retries[spot] < _RETRIES and retries.total() < most) as spoilt:
            seconds = await bench.measure(spot)
        retries[spot] += spoilt[0]
        slow = redone[spot] < plan.redo and await pace.slow(engines)
        redone[spot] += slow
        return None if spoilt[0] or slow else seconds

    return measure


async def measure_points(
    pair: EnginePair,
    spots: Sequence[Spot],
    *,
    plan: Plan = CHECK_PLAN,
    seed: int = 1,
    watch: Watch | None = None,
    progress: Progress = lambda done, total, what: None,
) -> dict[Spot, list[float]]:
    """Samples of some points on a started pair, in seconds; a point that could not be measured is missing."""
    bench = Bench(pair, spots, seed)
    await bench.prepare()
    taken = await sample(watched(bench, watch, plan) if watch else bench.measure, spots, plan, progress=progress, seed=seed)
    return {spot: samples for spot, samples in taken.items() if samples}
