from __future__ import annotations

import json
from pathlib import Path

import pytest

from ampd.errors import SetupError
from ampd.profiler.grid import make_grid
from ampd.profiler.jobs import RandomTokens
from ampd.workers.engines.base import EngineInfo


def _info(max_model_len: int = 8192, kv_total: int = 46_560, block_size: int = 32) -> EngineInfo:
    return EngineInfo(
        engine="vllm", version="1", model="m", block_size=block_size, kv_total=kv_total, max_model_len=max_model_len, theta=1,
        kv_bytes_per_token=1,
    )  # fmt: skip


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(("context", "pool"), [(8192, 46_560), (1024, 46_560), (8192, 4096), (131_072, 10**6)])
def test_every_point_fits_the_engine(quick: bool, context: int, pool: int) -> None:
    grid = make_grid(_info(context, pool), quick)
    assert len(grid.prefill) >= 3
    assert len(grid.decode) >= 3
    assert len(grid.transfer) >= 3
    assert all(h + i < context and h + i < pool for h, i in grid.prefill)
    assert all(c < context and b * c <= pool / 2 for b, c in grid.decode)
    assert all(n < context for n in grid.transfer)


def test_history_and_transfers_are_whole_blocks() -> None:
    grid = make_grid(_info(block_size=48), quick=False)
    assert all(h % 48 == 0 for h, _ in grid.prefill)
    assert all(n % 48 == 0 for n in grid.transfer)
    assert len(set(grid.transfer)) == len(grid.transfer)


def test_the_quick_grid_is_the_smaller() -> None:
    quick, full = make_grid(_info(), quick=True), make_grid(_info(), quick=False)
    assert len(quick.prefill) * quick.repeats < len(full.prefill) * full.repeats
    assert len(quick.decode) < len(full.decode)


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
