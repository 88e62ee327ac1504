"""A model's shape from its config.json: what its weights and its KV weigh, and who divides it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ampd.errors import ProfileError
from ampd.profiler.silicon import package
from ampd.profiler.silicon.systems import System

MEMORY_SHARE = 0.9  # of a GPU's memory that the engine takes (vLLM's gpu_memory_utilization)
_BYTES = 2  # BF16 and FP16, weights and KV
_SUFFIX = "_config.json"
# Decoders with grouped-query attention in every layer, and a gated MLP or a mixture of them.
_DECODERS = {
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
}
Count = Annotated[int, msgspec.Meta(ge=1)]


class _Kind(msgspec.Struct, frozen=True):
    architectures: list[str] = []


class _Config(msgspec.Struct, frozen=True):
    """What is read of a config.json, by its own names."""

    hidden_size: Count
    intermediate_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    vocab_size: Count
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    num_local_experts: Count | None = None
    num_experts: Count | None = None
    moe_intermediate_size: Count | None = None
    num_experts_per_tok: Count | None = None
    tie_word_embeddings: bool = False
    sliding_window: int | None = None
    use_sliding_window: bool = True
    quantization_config: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder with grouped-query attention and a gated MLP, dense (`experts` 1) or a mixture of experts."""

    name: str
    layers: int
    hidden: int
    intermediate: int  # of one expert
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    experts: int
    active_experts: int
    tied: bool
    config: Path  # the file it was read from

    @property
    def kv_bytes_per_token(self) -> int:
        """Of all GPUs together, each KV head once."""
        return 2 * self.layers * self.kv_heads * self.head_dim * _BYTES

    @property
    def weight_bytes(self) -> int:
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        mlp = 3 * self.hidden * self.intermediate * self.experts + (self.hidden * self.experts if self.experts > 1 else 0)
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return (self.layers * (attention + mlp) + embeddings) * _BYTES

    def kv_share(self, tp: int) -> float:
        """Share of `kv_bytes_per_token` on each of `tp` GPUs; a KV head is the least that a GPU can hold."""
        return max(1 / tp, 1 / self.kv_heads)

    def kv_capacity(self, system: System, tp: int) -> int:
        """KV tokens that `tp` GPUs hold beside the weights; negative when the weights do not fit."""
        gpu = system.gpu.mem_capacity * MEMORY_SHARE - system.misc.other_mem - system.misc.nccl_mem.get(tp, 0)
        return int((gpu - self.weight_bytes / tp) / (self.kv_bytes_per_token * self.kv_share(tp)))


def load_shape(model: str) -> Shape:
    """The shape of a model folder, or of a published model by its hub name. Raises ProfileError in one line."""
    path = _config_file(model)
    try:
        raw = path.read_bytes()
        _check_kind(model, msgspec.json.decode(raw, type=_Kind).architectures)
        config = msgspec.json.decode(raw, type=_Config)
    except OSError as e:
        raise ProfileError(f"model: {path} cannot be read: {e.strerror}") from None
    except msgspec.DecodeError as e:
        raise ProfileError(f"model: {path} is not the config.json of a decoder: {e}") from None
    _check(model, path, config)
    experts = config.num_local_experts or config.num_experts or 1
    return Shape(
        name=model,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        intermediate=(config.moe_intermediate_size if experts > 1 else None) or config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads or config.num_attention_heads,
        head_dim=config.head_dim or config.hidden_size // config.num_attention_heads,
        vocabulary=config.vocab_size,
        experts=experts,
        active_experts=config.num_experts_per_tok or 1,
        tied=config.tie_word_embeddings,
        config=path,
    )


def _check_kind(model: str, architectures: list[str]) -> None:
    if not set(architectures) & _DECODERS:
        kind = " or ".join(architectures) or "model of no stated architecture"
        raise ProfileError(f"model: {model} is a {kind}; only {', '.join(sorted(_DECODERS))} can be estimated")


def _check(model: str, path: Path, config: _Config) -> None:
    """Raise ProfileError for what the arithmetic of `Shape` does not hold for."""
    if config.sliding_window and config.use_sliding_window:
        raise ProfileError(f"model: {model} has a sliding_window; only attention over all of the context can be estimated")
    # ModelOpt states it in a file of its own.
    elsewhere = path.with_name(path.name.removesuffix("config.json") + "hf_quant_config.json")
    if config.quantization_config or elsewhere.is_file():
        raise ProfileError(f"model: {model} is quantized; only BF16 and FP16 models can be estimated: name the unquantized one")


def _config_file(model: str) -> Path:
    folder = Path(model)
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ProfileError(f"model: {folder} has no config.json; give a model folder, or a hub name such as Qwen/Qwen3-32B")
        return folder / "config.json"
    data = package.data_folder()
    if data is None:
        raise ProfileError(f"model: {model} is no folder; give one with a config.json, or {package.INSTALL}, which knows hub names")
    found = {p.name.removesuffix(_SUFFIX).replace("--", "/", 1): p for p in (data / "model_configs").glob(f"*{_SUFFIX}")}
    known = {name: path for name, path in found.items() if not name.endswith("_hf_quant")}
    if model in known:
        return known[model]
    short = {name.rpartition("/")[2].lower(): name for name in known}
    near = difflib.get_close_matches(model.rpartition("/")[2].lower(), short, n=3, cutoff=0.5)
    such = f" such as {' or '.join(short[n] for n in near)}" if near else ""
    raise ProfileError(
        f"model: {model!r} is no folder, and no name that {package.NAME} knows; give a name{such}, or a folder with a config.json"
    )
