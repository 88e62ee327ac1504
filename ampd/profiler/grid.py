"""Which points to measure: dense where the curves bend (short increments, small batches), bounded by what the engines can hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ampd.errors import SetupError
from ampd.profiler.spots import DECODE_STEPS, Kind, Spot

_LEAST = 3  # points that a function needs


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine pair can hold, in tokens. `kv_total` None: not known before the engines have started."""

    block_size: int
    max_model_len: int
    prefill_chunk: int  # of the decode engine: the largest chunk in one of its steps
    kv_prefill: int | None
    kv_decode: int | None

    @property
    def longest(self) -> int:
        """The longest prompt: room for the tokens that are read or computed beside it stays in both pools."""
        pools = [pool // 2 for pool in (self.kv_prefill, self.kv_decode) if pool is not None]
        return min([self.max_model_len, *pools]) - 2 * self.block_size


@dataclass(frozen=True, slots=True)
class Grid:
    """Values before any bound."""

    history: tuple[int, ...]
    increment: tuple[int, ...]
    longest: int  # prefills beyond this take long on a slow machine
    decode: tuple[tuple[int, tuple[int, ...]], ...]  # batch, contexts of each sequence
    mixed: tuple[tuple[int, tuple[int, ...]], ...]
    chunks: tuple[int, ...]
    transfer: tuple[int, ...]


# Some sizes are no round numbers: on GPUs these are the fast ones, and a fit to them alone would be too low in between.
QUICK = Grid(
    history=(0, 512, 2048, 4096),
    increment=(1, 16, 64, 200, 512, 700, 1024, 2048),
    longest=4608,
    decode=((1, (64, 1024, 4096)), (2, (512,)), (4, (128, 1024)), (8, (128, 512)), (16, (64, 256))),
    mixed=((1, (1024,)), (4, (128,)), (8, (512,))),
    chunks=(16, 64, 200, 512),
    transfer=(64, 256, 512, 1024, 2048, 4096),
)
FULL = Grid(
    history=(0, 256, 1024, 2048, 4096, 6144, 8192),
    # Odd sizes among the round ones: between the steps of an engine's kernels a fit cannot know what it has not seen.
    increment=(1, 8, 16, 32, 64, 90, 128, 200, 256, 384, 512, 700, 1024, 1400, 2048, 2900, 4096),
    longest=1 << 30,
    decode=(
        (1, (64, 256, 1024, 2048, 4096)),
        (2, (64, 256, 1024, 2048, 4096)),
        (4, (64, 256, 1024, 2048, 4096)),
        (8, (64, 256, 1024, 2048, 4096)),
        (12, (64, 256, 1024, 2048)),
        (16, (64, 256, 1024, 2048, 4096)),
    ),
    mixed=((1, (256, 2048)), (2, (1024,)), (4, (256, 1024)), (8, (256, 1024)), (16, (128, 1024))),
    chunks=(16, 32, 64, 90, 128, 200, 256, 384, 512),
    transfer=(64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192),
)


def choose_spots(limits: Limits, quick: bool) -> list[Spot]:
    """The points that fit. Raises SetupError when the engines hold too little for a function's fit."""
    grid, longest = (QUICK if quick else FULL), limits.longest
    block = limits.block_size
    history = _unique(h // block * block for h in grid.history)
    most = min(longest, grid.longest)
    spots = [Spot("prefill", (h, i)) for h in history for i in grid.increment if h + i <= most and not _far(h, i, grid)]
    spots += [Spot("decode", (b, c)) for b, contexts in grid.decode for c in contexts if _fits(limits, b, c)]
    chunks = _unique(min(chunk, limits.prefill_chunk) for chunk in grid.chunks)
    spots += [
        Spot("mixed", (b, c, chunk)) for b, contexts in grid.mixed for c in contexts for chunk in chunks if _fits(limits, b, c)
    ]
    sizes = _unique(min(-(-n // block), longest // block) * block for n in grid.transfer)
    spots += [Spot(direction, (n,)) for direction in ("history", "increment") for n in sizes]
    _enough(spots, limits)
    return spots


def _far(hist: int, incr: int, grid: Grid) -> bool:
    """Long increments after every other history only: there the curve is smooth, and a point takes seconds."""
    return incr >= 1400 and grid.history.index(_at_most(grid.history, hist)) % 2 == 1


def _at_most(values: Sequence[int], wanted: int) -> int:
    """The nearest value: `wanted` is one of them in whole blocks."""
    return min(values, key=lambda value: abs(value - wanted))


def _fits(limits: Limits, batch: int, context: int) -> bool:
    """A third of the pool at most: the rest stays for other points' prompts, and for what reads bring in."""
    if context + 4 * DECODE_STEPS > limits.longest:
        return False
    return limits.kv_decode is None or batch * (context + limits.block_size) <= limits.kv_decode // 3


def _unique(values: Iterable[int]) -> list[int]:
    return [value for value in dict.fromkeys(values) if value >= 0]


def _enough(spots: Iterable[Spot], limits: Limits) -> None:
    counts: dict[Kind, int] = dict.fromkeys(("prefill", "decode", "mixed", "history", "increment"), 0)
    for spot in spots:
        counts[spot.kind] += 1
    for kind, count in counts.items():
        if count < _LEAST:
            raise SetupError(
                f"model.max_model_len = {limits.max_model_len} and a KV pool of {limits.kv_decode} tokens leave room for {count} "
                f"{kind} points, at least {_LEAST} are needed; raise them"
            )
