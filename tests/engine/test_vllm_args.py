"""From a graph to vLLM's arguments and environment. No engine runs here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from engine_pair import engine, free_ports, graph

from ampd.config import Graph, Worker
from ampd.errors import ConfigError, SetupError
from ampd.workers.engines.vllm_args import applied, engine_args, environment


def changed(model: Path, role: str, **worker: Any) -> tuple[Graph, Worker]:
    base = graph(model)
    workers = [w.model_copy(update=worker) if w.role == role else w for w in base.workers]
    changed_graph = base.model_copy(update={"workers": workers})
    return changed_graph, next(w for w in workers if w.role == role)


def test_a_prefill_step_leaves_budget_to_look_at_the_next_request(tiny_model: Path) -> None:
    args = engine_args(*changed(tiny_model, "prefill"), cpu=True)
    assert args["max_num_batched_tokens"] == 256
    assert args["long_prefill_token_threshold"] < 256
    assert args["max_num_seqs"] > 1


def test_a_decode_step_has_room_for_a_chunk_beside_all_decoding_sequences(tiny_model: Path) -> None:
    args = engine_args(*changed(tiny_model, "decode", engine_args={"max_num_seqs": 7}), cpu=False)
    assert (args["max_num_batched_tokens"], args["long_prefill_token_threshold"]) == (519, 512)
    assert not args["enforce_eager"]


def test_pins_outlive_the_sessions_idle_time(tiny_model: Path) -> None:
    extra = engine_args(*changed(tiny_model, "decode"), cpu=True)["kv_transfer_config"]["kv_connector_extra_config"]
    assert extra["decoder_kv_blocks_ttl"] > graph(tiny_model).sessions.idle_ttl_s


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (
            {"gpu_memory_utilisation": 0.5},
            r"workers\[decode\].engine_args.gpu_memory_utilisation.*did you mean gpu_memory_utilization",
        ),
        ({"block_size": 16}, "use model.block_size"),
        ({"scheduler_cls": "x"}, "set by ampd, remove it"),
    ],
)
def test_wrong_engine_arguments_are_named(tiny_model: Path, args: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        engine_args(*changed(tiny_model, "decode", engine_args=args), cpu=True)


def test_the_environment_of_a_replica(tiny_model: Path) -> None:
    env = environment(*changed(tiny_model, "decode", cores=["2-3", "4-5"], env={"EXTRA": "1"}), 1, 5601)
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "4-5"
    assert (env["VLLM_NIXL_SIDE_CHANNEL_PORT"], env["UCX_TLS"], env["VLLM_CPU_KVCACHE_SPACE"], env["EXTRA"]) == (
        "5601",
        "tcp",
        "1",
        "1",
    )


def test_cpu_engines_do_without_a_compiler(tiny_model: Path) -> None:
    assert environment(*changed(tiny_model, "decode", cores=[]), 0, 5601)["TORCHDYNAMO_DISABLE"] == "1"
    assert "TORCHDYNAMO_DISABLE" not in environment(*changed(tiny_model, "decode", cores=[], kv_cache_gib=None), 0, 5601)


def test_a_replica_without_cores_is_refused(tiny_model: Path) -> None:
    with pytest.raises(ConfigError, match=r"workers\[decode\].cores = .* no entry for replica 1"):
        environment(*changed(tiny_model, "decode"), 1, 5601)


def test_variables_are_set_for_the_start_only() -> None:
    os.environ["AMPD_TEST_OLD"] = "old"
    try:
        with applied({"AMPD_TEST_OLD": "new", "AMPD_TEST_NEW": "x"}):
            assert (os.environ["AMPD_TEST_OLD"], os.environ["AMPD_TEST_NEW"]) == ("new", "x")
        assert os.environ["AMPD_TEST_OLD"] == "old"
        assert "AMPD_TEST_NEW" not in os.environ
    finally:
        del os.environ["AMPD_TEST_OLD"]


async def test_an_engine_that_cannot_start_names_what_to_change(tiny_model: Path) -> None:
    base = graph(tiny_model, model={"max_model_len": 10**6})
    with pytest.raises(SetupError, match=r"worker decode: .*max_model_len"):
        await engine(base, "decode", free_ports(1)[0]).start()
