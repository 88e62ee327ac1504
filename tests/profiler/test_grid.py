"""Which points are chosen, what fills the caches for them, and how long that is expected to take."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ampd.cost_model import CoarseCostModel
from ampd.errors import SetupError
from ampd.profiler.bases import Bases, base_lengths
from ampd.profiler.forecast import expected_run_s
from ampd.profiler.grid import Limits, choose_spots
from ampd.profiler.jobs import RandomTokens
from ampd.profiler.sampling import FULL_PLAN, QUICK_PLAN
from ampd.profiler.spots import Kind, Spot

KINDS: tuple[Kind, ...] = ("prefill", "decode", "mixed", "history", "increment")


def _limits(context: int = 8192, pool: int | None = 46_560, block: int = 32, chunk: int = 512) -> Limits:
    return Limits(block, context, chunk, pool, pool)


def _args(spots: list[Spot], kind: Kind) -> list[tuple[int, ...]]:
    return [spot.args for spot in spots if spot.kind == kind]


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(("context", "pool"), [(8192, 46_560), (1280, 46_560), (8192, 4096), (131_072, 10**6), (131_072, None)])
def test_every_point_fits_the_engine(quick: bool, context: int, pool: int | None) -> None:
    spots = choose_spots(_limits(context, pool), quick)
    room = pool or 10**9
    assert len(set(spots)) == len(spots)
    assert all(len(_args(spots, kind)) >= 3 for kind in KINDS)
    assert all(h + i < context and h + i <= room / 2 for h, i in _args(spots, "prefill"))
    assert all(c + 64 < context and b * c <= room / 2 for b, c in _args(spots, "decode"))
    assert all(c + 64 < context and b * c <= room / 2 and chunk <= 512 for b, c, chunk in _args(spots, "mixed"))
    assert all(n < context and n <= room / 2 for kind in ("history", "increment") for (n,) in _args(spots, kind))  # type: ignore[arg-type]


def test_a_roomy_engine_is_measured_over_the_ranges_that_sessions_need() -> None:
    spots = choose_spots(_limits(12_800, 131_000), quick=False)
    prefill = _args(spots, "prefill")
    assert {0, 8192} <= {h for h, _ in prefill}
    assert {1, 4096} <= {i for _, i in prefill}
    assert (8192, 4096) in prefill
    decode = _args(spots, "decode")
    assert {1, 16} <= {b for b, _ in decode}
    assert {(1, 4096), (8, 4096)} <= set(decode)
    assert {512, 8192} <= {n for (n,) in _args(spots, "history")} & {n for (n,) in _args(spots, "increment")}
    assert len({chunk for *_, chunk in _args(spots, "mixed")}) >= 5


def test_points_lie_denser_where_the_curves_bend() -> None:
    increments = sorted({i for h, i in _args(choose_spots(_limits(), quick=False), "prefill") if h == 0})
    assert sum(i <= 512 for i in increments) > sum(i > 512 for i in increments)


def test_histories_and_reads_are_whole_blocks_and_chunks_fit_a_step() -> None:
    spots = choose_spots(_limits(block=48, chunk=200), quick=False)
    assert all(h % 48 == 0 for h, _ in _args(spots, "prefill"))
    assert all(n % 48 == 0 for kind in ("history", "increment") for (n,) in _args(spots, kind))  # type: ignore[arg-type]
    assert max(chunk for *_, chunk in _args(spots, "mixed")) == 200


def test_an_engine_that_is_too_small_is_named() -> None:
    with pytest.raises(SetupError, match="max_model_len = 100"):
        choose_spots(_limits(context=100), quick=True)


def test_the_quick_grid_is_the_shorter() -> None:
    quick, full = choose_spots(_limits(), quick=True), choose_spots(_limits(), quick=False)
    cost = CoarseCostModel()
    low, high = expected_run_s(quick, QUICK_PLAN, cost, 1)
    assert low <= high <= 180
    assert expected_run_s(full, FULL_PLAN, cost, 1)[0] > 2 * high
    assert expected_run_s(quick, QUICK_PLAN, CoarseCostModel(token_s=3e-3), 1)[0] > low


def test_bases_are_as_long_as_the_longest_point_needs_and_no_longer(tmp_path: Path) -> None:
    spots = [
        Spot("prefill", (64, 9)),
        Spot("decode", (1, 100)),
        Spot("mixed", (3, 40, 8)),
        Spot("history", (128,)),
        Spot("increment", (96,)),
    ]
    assert base_lengths(spots) == (96, [129, 41, 41])
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 2048}))
    bases = Bases(spots, RandomTokens(tmp_path, seed=1))
    assert (len(bases.prefill), [len(b) for b in bases.decode]) == (96, [129, 41, 41])
    assert bases.decode[1] != bases.decode[2], "every sequence has KV of its own"


def test_room_stays_in_the_pool_beside_the_bases() -> None:
    for quick in (True, False):
        prefill, decode = base_lengths(choose_spots(_limits(), quick))
        assert prefill <= 46_560 / 2
        assert sum(decode) <= 46_560 * 0.6


def test_random_tokens_are_fresh_and_of_the_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 2048}))
    tokens = RandomTokens(tmp_path, seed=1)
    first, second = tokens.take(500), tokens.take(500)
    assert first != second
    assert all(0 < t < 2048 for t in first + second)
    assert RandomTokens(tmp_path, seed=1).take(500) == first


def test_a_config_without_vocabulary_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SetupError, match="vocab_size"):
        RandomTokens(tmp_path, seed=1)
