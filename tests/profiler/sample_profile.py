"""A profile of known functions, fitted to points that scatter a little, for the tests of what reads profiles."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from ampd.cost_model import DecodePoint, KvPoint, Meta, MixedPoint, Points, PrefillPoint, Profile
from ampd.cost_model.fitting import fit_profile

META = Meta(
    model="tiny", engine="vllm", engine_version="1", device="a CPU", block_size=32, kv_bytes_per_token=4096,
    kv_capacity_tokens=100_000, created="2026-01-01T00:00:00+00:00", transport="tcp",
)  # fmt: skip
HISTORY = (0, 512, 1024)
INCREMENT = (16, 64, 256, 512, 1024)
BATCH = (1, 4, 16)
CONTEXT = (64, 256, 1024)
TRANSFER = (64, 256, 1024, 4096)


def true_t_pre(l_hist: int, l_incr: int) -> float:
    return 0.01 + 1e-4 * l_incr + 2e-8 * l_incr * (l_hist + l_incr / 2)


def true_t_dec(batch: int, context: int) -> float:
    return 0.008 + 1e-3 * batch + 1e-7 * context


def true_t_kv(tokens: int) -> float:
    return 2e-3 + 1e-6 * tokens


def make_profile(slower: float = 1.0, theta: int = 1, scatter: float = 0.02, **meta: Any) -> Profile:
    """All times are `slower` than the true ones by that factor, each off by up to `scatter`."""
    rng = random.Random(5)

    def near(seconds: float) -> float:
        return slower * seconds * rng.uniform(1 - scatter, 1 + scatter)

    points = Points(
        prefill=[PrefillPoint(h, i, near(true_t_pre(h, i)), theta) for h in HISTORY for i in INCREMENT],
        decode=[DecodePoint(b, b * c, near(true_t_dec(b, b * c)), theta) for b in BATCH for c in CONTEXT],
        mixed=[
            MixedPoint(b, 256 * b, chunk, near(true_t_dec(b, 256 * b) + true_t_pre(0, chunk)), theta)
            for b in BATCH
            for chunk in (16, 64, 256)
        ],
        kv=[KvPoint(n, way, near(true_t_kv(n)), theta, theta) for way in ("history", "increment") for n in TRANSFER],
    )
    return fit_profile(msgspec.structs.replace(META, **meta), points)
