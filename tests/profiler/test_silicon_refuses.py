"""What cannot be estimated is refused in one line: the field, the value and the fix."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ampd.errors import ProfileError
from ampd.profiler.silicon import package, parse_tps, silicon_profile
from ampd.profiler.silicon.models import load_shape
from ampd.profiler.silicon.systems import load_system

LLAMA_70B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


def written(path: Path, config: dict[str, object]) -> str:
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


def refusal(act: object, *args: object, **settings: object) -> str:
    assert callable(act)
    with pytest.raises(ProfileError) as caught:
        act(*args, **settings)
    said = str(caught.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize("text", ["", "a", "1,two", "0", "-1", "1.5"])
def test_degrees_are_a_list_of_whole_numbers(text: str) -> None:
    said = refusal(parse_tps, text)
    assert said.startswith("tp: ")
    assert "1,2,4,8" in said


def test_degrees_are_sorted_once_each() -> None:
    assert parse_tps(" 8,1, 1,2,") == [1, 2, 8]


@pytest.mark.parametrize(
    ("tps", "words"),
    [
        ([3], ("tp: 3 does not divide", "64 heads", "1, 2, 4, 8")),
        ([4, 16], ("tp: 16 is more than the 8 GPUs of a node of h20",)),
        ([1, 2], ("does not fit h20 with tp 1", "141 GB of weights, 103 GB a GPU", "--tp 2,4,8")),
    ],
)
def test_a_degree_that_cannot_be(tps: list[int], words: tuple[str, ...], tmp_path: Path) -> None:
    said = refusal(silicon_profile, "h20", written(tmp_path, LLAMA_70B), tps)
    assert all(word in said for word in words), said


def test_a_model_for_which_no_node_is_enough(tmp_path: Path) -> None:
    model = written(tmp_path, LLAMA_70B | {"num_hidden_layers": 800})
    assert "take a smaller model" in refusal(silicon_profile, "h20", model, [8])


def test_a_block_of_no_tokens(tmp_path: Path) -> None:
    assert refusal(silicon_profile, "h20", written(tmp_path, LLAMA_70B), [4], block_size=0).startswith("block_size: 0")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["DeepseekV3ForCausalLM"]}, "is a DeepseekV3ForCausalLM; only LlamaForCausalLM"),
        ({"architectures": []}, "no stated architecture"),
        ({"quantization_config": {"quant_method": "fp8"}}, "is quantized"),
        ({"sliding_window": 4096}, "has a sliding_window"),
        ({"hidden_size": "8192"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
    ],
)
def test_a_model_that_the_arithmetic_does_not_hold_for(change: dict[str, object], words: str, tmp_path: Path) -> None:
    said = refusal(load_shape, written(tmp_path, LLAMA_70B | change))
    assert said.startswith("model: ")
    assert words in said


def test_weights_that_modelopt_quantized(tmp_path: Path) -> None:
    model = written(tmp_path, LLAMA_70B)
    load_shape(model)
    (tmp_path / "hf_quant_config.json").write_text("{}")
    assert "is quantized" in refusal(load_shape, model)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    assert "has no config.json" in refusal(load_shape, str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    assert "is not the config.json of a decoder" in refusal(load_shape, str(tmp_path))


def test_a_model_and_a_system_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package, "data_folder", lambda: None)
    assert "pip install 'ampd[silicon]'" in refusal(load_shape, "Qwen/Qwen3-32B")
    said = refusal(load_system, "h200")
    assert "give h20, or a .yaml file of your own" in said
    assert "pip install 'ampd[silicon]' for more names" in said


def test_a_system_that_is_no_file(tmp_path: Path) -> None:
    assert "No such file" in refusal(load_system, str(tmp_path / "own.yaml"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpu": {"mem_bw": 1e12, "mem_capacity": 8e10}}, "bfloat16_tc_flops"),
        ({"gpu": {"mem_bw": 0, "mem_capacity": 8e10, "bfloat16_tc_flops": 1e14}}, "mem_bw"),
        ({"node": None}, "node"),
        ({"ampd": {"compute_efficiency": 1.5}}, "compute_efficiency"),
        ({"ampd": {"compute_efficency": 0.5}}, "compute_efficency"),
    ],
)
def test_a_system_with_a_wrong_key(change: dict[str, object], words: str, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(yaml.safe_dump(yaml.safe_load(Path(load_system("h20").path).read_text()) | change))
    said = refusal(load_system, str(own))
    assert str(own) in said
    assert words in said


@pytest.mark.parametrize("text", ["- a list", "gpu: [", "\x00"])
def test_a_system_that_is_not_yaml_of_one(text: str, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(text)
    assert refusal(load_system, str(own)).startswith(f"silicon: {own}: ")


def test_the_command_says_it_in_one_line_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "p.json"
    command = [sys.executable, "-m", "ampd.profiler", "--silicon", "h20", "--model", written(tmp_path, LLAMA_70B), "--tp", "1"]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.startswith("ampd: tp: ")
    assert len(done.stderr.splitlines()) == 1
    assert not out.exists()
