"""Which points to measure: dense where the curves bend (short increments, small batches), bounded by what the engine can hold."""

from __future__ import annotations

from dataclasses import dataclass

from ampd.workers.engines.base import EngineInfo

_QUICK_HISTORY = (0, 512, 2048, 4096)
_QUICK_INCREMENT = (16, 64, 256, 512, 1024, 2048)
_QUICK_LONGEST = 5120  # the longest prompts take seconds each
_FULL_HISTORY = (0, 256, 1024, 2048, 4096, 6144)
_FULL_INCREMENT = (1, 16, 64, 128, 256, 512, 768, 1024, 2048, 3072)
_QUICK_DECODE = ((1, 64), (1, 1024), (1, 4096), (2, 512), (4, 128), (4, 1024), (8, 128), (8, 512))
_FULL_DECODE = (*_QUICK_DECODE, (1, 256), (1, 2048), (2, 64), (2, 2048), (4, 512), (8, 1024), (12, 256), (16, 64), (16, 512))
_QUICK_TRANSFER = (32, 128, 512, 1024, 2048, 4096)
_FULL_TRANSFER = (32, 64, 128, 256, 512, 1024, 1536, 2048, 3072, 4096, 6144)


@dataclass(frozen=True, slots=True)
class Grid:
    """Points in tokens: `prefill` (l_hist, l_incr), `decode` (batch, context of each sequence), `transfer` sizes. Each is
    measured `repeats` times; decode points, which contain many steps each, `decode_repeats` times.
    """

    prefill: tuple[tuple[int, int], ...]
    decode: tuple[tuple[int, int], ...]
    transfer: tuple[int, ...]
    repeats: int
    decode_repeats: int


def make_grid(info: EngineInfo, quick: bool) -> Grid:
    """The points that fit an engine's context length and KV pool."""
    history, increment = (_QUICK_HISTORY, _QUICK_INCREMENT) if quick else (_FULL_HISTORY, _FULL_INCREMENT)
    longest = min(info.max_model_len, info.kv_total // 2) - 2 * info.block_size
    decode = _QUICK_DECODE if quick else _FULL_DECODE
    transfer = _QUICK_TRANSFER if quick else _FULL_TRANSFER
    blocks = [h // info.block_size * info.block_size for h in history]
    return Grid(
        prefill=tuple((h, i) for h in blocks for i in increment if h + i <= min(longest, _QUICK_LONGEST if quick else longest)),
        decode=tuple((b, c) for b, c in decode if c <= longest and b * c <= info.kv_total // 2),
        transfer=tuple(dict.fromkeys(-(-n // info.block_size) * info.block_size for n in transfer if n <= longest)),
        repeats=3 if quick else 5,
        decode_repeats=2 if quick else 3,
    )
