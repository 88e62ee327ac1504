"""Estimates from a stated roofline: no table, no extra, no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from ampd.cost_model import Profile, load_profile, save_profile
from ampd.profiler.silicon import silicon_profile
from ampd.profiler.silicon.grid import prefill_points
from ampd.profiler.silicon.models import load_shape
from ampd.profiler.silicon.roofline import Roofline
from ampd.profiler.silicon.systems import load_system

QWEN3_32B = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 5120,
    "intermediate_size": 25600,
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
}
MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def folder(path: Path, config: dict[str, object]) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> str:
    return folder(tmp_path_factory.mktemp("qwen3-32b"), QWEN3_32B)


@pytest.fixture(scope="module")
def h20(qwen: str) -> Profile:
    return silicon_profile("h20", qwen, [4, 2], block_size=64, served_name="qwen3-32b")


def test_weights_and_kv_weigh_what_the_published_models_do(qwen: str, tmp_path: Path) -> None:
    shape = load_shape(qwen)
    assert shape.weight_bytes == pytest.approx(2 * 32.76e9, rel=0.001)  # 32.8 billion parameters
    assert shape.kv_bytes_per_token == 2 * 64 * 8 * 128 * 2
    mixtral = load_shape(folder(tmp_path, MIXTRAL))
    assert mixtral.weight_bytes == pytest.approx(2 * 46.7e9, rel=0.001)
    assert mixtral.kv_share(16) == 1 / 8  # a GPU holds a KV head at least


def test_kv_capacity_is_what_weights_and_buffers_leave(qwen: str) -> None:
    system, shape = load_system("h20"), load_shape(qwen)
    one, four = shape.kv_capacity(system, 1), shape.kv_capacity(system, 4)
    gpu = 0.9 * 102.6e9 - 3.76e9
    assert one * 262144 == pytest.approx(gpu - 65.5e9, rel=0.01)
    assert four * 262144 == pytest.approx(4 * (gpu - 0.41e9) - 65.5e9, rel=0.01)


def test_a_long_prefill_takes_its_operations_over_the_reached_flops(qwen: str) -> None:
    shape, system = load_shape(qwen), load_system("h20")
    parameters = shape.weight_bytes / 2 - 2 * shape.vocabulary * shape.hidden
    products = 2 * parameters * 8192 / (4 * 0.9 * 148e12)
    attention = 4 * 64 * 64 * 128 * 8192 * (32768 + 4096) / (4 * 0.85 * 148e12)
    assert Roofline(shape, system, 4).t_pre(32768, 8192) == pytest.approx(products + attention, rel=0.1)


def test_a_small_decode_step_takes_its_bytes_over_the_reached_bandwidth(qwen: str) -> None:
    shape, system = load_shape(qwen), load_system("h20")
    read = shape.weight_bytes - 2 * shape.vocabulary * shape.hidden + 262144 * 32768
    assert Roofline(shape, system, 1).t_dec(1, 32768) == pytest.approx(read / (0.8 * 4e12), rel=0.15)


def test_few_tokens_of_a_mixture_load_few_experts(tmp_path: Path) -> None:
    times = Roofline(load_shape(folder(tmp_path, MIXTRAL)), load_system("h20"), 2)
    one, many = times.t_dec(1, 128), times.t_dec(32, 128)
    assert 2 < many / one < 4  # 2 of 8 experts, then all
    # What a chunk adds: the experts that a lone sequence does not need anyway.
    assert times.t_mixed(1, 128, 64) - one > 2 * (times.t_mixed(32, 128, 64) - many)


def test_points_stay_within_the_kv_capacity(qwen: str) -> None:
    times = Roofline(load_shape(qwen), load_system("h20"), 4)
    points = list(prefill_points(times, 4, 10_000))
    assert max(p.l_hist + p.l_incr for p in points) <= 10_000
    assert {p.l_hist for p in points} == {0, 512, 1024, 2048, 4096, 8192}


def test_the_profile_says_that_it_is_an_estimate_and_of_what(h20: Profile) -> None:
    meta = h20.meta
    assert (meta.source, meta.model, meta.block_size, meta.engine_version) == ("estimated", "qwen3-32b", 64, "none (roofline)")
    assert "roofline" in meta.device
    assert "nothing was measured" in meta.notes
    assert meta.provenance is not None
    assert (meta.provenance.package, meta.provenance.system, meta.provenance.tables) == ("ampd", "h20.yaml", [])
    assert "FlashMLA" in meta.provenance.notes
    assert set(meta.kv_capacity_by_theta) == {"2", "4"}
    assert meta.kv_capacity_by_theta["2"] == meta.kv_capacity_tokens < meta.kv_capacity_by_theta["4"]


def test_the_profile_is_read_again_as_any_other(h20: Profile, tmp_path: Path) -> None:
    save_profile(h20, tmp_path / "p.json")
    again = load_profile(tmp_path / "p.json")
    again.check(model="qwen3-32b", theta=2, block_size=64)
    assert again.cost_model().t_pre(4096, 512, 4) == h20.cost_model().t_pre(4096, 512, 4)


def test_transfers_take_the_stated_bandwidths_of_the_side_with_fewer_links(h20: Profile) -> None:
    cost = h20.cost_model()
    tokens = 8192
    across = cost.t_kv(tokens, 4, 2, "history", "rdma")
    assert across == pytest.approx(1e-3 + tokens * 262144 / (2 * 50e9), rel=0.01)
    assert cost.t_kv(tokens, 4, 2, "history", "nvlink") == pytest.approx(1e-3 + tokens * 262144 / (2 * 450e9), rel=0.01)
    assert cost.t_kv(tokens, 4, 4, "increment", "rdma") < across
    assert cost.t_kv(tokens, 4, 2, "history") == across  # across nodes, unless said otherwise


def test_the_fit_follows_the_roofline(h20: Profile) -> None:
    for fit in (*h20.t_pre, *h20.t_dec, *h20.t_mixed):
        assert fit.error.heldout_median < 0.02


def test_an_own_system_counts_for_what_it_states(qwen: str, tmp_path: Path) -> None:
    stated = yaml.safe_load(Path(load_system("h20").path).read_text())
    stated["gpu"]["bfloat16_tc_flops"] *= 2
    stated["ampd"] = {"title": "twice an H20"}
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump(stated))
    system = load_system(str(own))
    assert (system.title, system.ampd.compute_efficiency, system.has_tables) == ("twice an H20", 0.7, False)
    shape = load_shape(qwen)
    slower, faster = Roofline(shape, load_system("h20"), 4), Roofline(shape, system, 4)
    assert faster.t_pre(0, 8192) == pytest.approx(slower.t_pre(0, 8192) * 0.9 / 0.7 / 2, rel=0.1)
