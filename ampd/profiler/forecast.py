"""What a run will measure and how long it will take, told from the graph and the model's files: no engine is started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ampd.config import Graph, Worker
from ampd.cost_model import CoarseCostModel, load_profile
from ampd.cost_model.scaled import ScaledCostModel
from ampd.errors import ProfileError, SetupError
from ampd.policy.types import CostModel
from ampd.profiler.bases import base_lengths
from ampd.profiler.grid import Limits
from ampd.profiler.sampling import Plan
from ampd.profiler.spots import DECODE_STEPS, MIXED_LEAD, MIXED_PROMPTS, Spot

START_S = 30.0  # both engines of a small CPU machine
_COARSE_WEIGHTS = 106e6  # of the model that CoarseCostModel is of, embeddings not counted
_OVERHEAD_S = 0.03  # of a sample: submission, the way back, the reference
_BYTES = {"float32": 4}


def limits_of(graph: Graph, prefill: Worker, decode: Worker, model: Path) -> Limits:
    """What the engines will hold. Raises SetupError for a model whose config lacks what the KV size follows from."""
    per_token = kv_bytes_per_token(graph, model)
    pools = [None if w.kv_cache_gib is None else (w.kv_cache_gib << 30) * w.tensor_parallel // per_token for w in (prefill, decode)]
    return Limits(graph.model.block_size, graph.model.max_model_len, decode.prefill_chunk, *pools)


def kv_bytes_per_token(graph: Graph, model: Path) -> int:
    """Of all layers, keys and values."""
    config = model_config(model)
    dtype = graph.model.dtype if graph.model.dtype != "auto" else str(config.get("dtype") or config.get("torch_dtype"))
    try:
        heads = config["num_attention_heads"]
        size = config.get("head_dim") or config["hidden_size"] // heads
        return int(2 * config["num_hidden_layers"] * (config.get("num_key_value_heads") or heads) * size * _BYTES.get(dtype, 2))
    except (KeyError, TypeError) as e:
        raise SetupError(f"{model / 'config.json'}: cannot tell the size of the model's KV: {e} is missing") from None


def model_config(model: Path) -> dict[str, Any]:
    """The language model's part of a model's config.json."""
    config = json.loads((model / "config.json").read_text())
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def cost_guess(graph: Graph, model: Path) -> CostModel:
    """The graph's own profile if it is of this model, else the coarse model scaled by the number of weights."""
    if graph.profile is not None:
        try:
            profile = load_profile(graph.profile)
            profile.check(model=graph.model.served_name, theta=graph.workers[0].tensor_parallel, block_size=graph.model.block_size)
            return profile.cost_model()
        except ProfileError:
            pass  # it may be what is to be replaced
    return ScaledCostModel(CoarseCostModel(), _COARSE_WEIGHTS / _weights(model_config(model)))


def _weights(config: dict[str, Any]) -> float:
    hidden, layers = int(config.get("hidden_size", 576)), int(config.get("num_hidden_layers", 30))
    return layers * (3.0 * hidden * int(config.get("intermediate_size", 4 * hidden)) + 2.5 * hidden * hidden)


def expected_s(spots: Sequence[Spot], samples: int, cost: CostModel, theta: int) -> float:
    """Seconds to take so many samples of each point, and to fill the caches first."""
    prefill, decode = base_lengths(spots)
    filling = sum(cost.t_pre(0, length, theta) for length in (prefill, *decode) if length)
    return filling + samples * sum(_OVERHEAD_S + _sample_s(spot, cost, theta) for spot in spots)


def expected_run_s(spots: Sequence[Spot], plan: Plan, cost: CostModel, theta: int) -> tuple[float, float]:
    """Seconds of a whole run if every point is stable at once, and if none is before its last sample."""
    low = expected_s(spots, plan.least, cost, theta)
    high = expected_s(spots, plan.most, cost, theta)
    return START_S + low, START_S + max(low, min(high, plan.budget_s))


def _sample_s(spot: Spot, cost: CostModel, theta: int) -> float:
    match spot.kind:
        case "prefill":
            l_hist, l_incr = spot.args
            return cost.t_pre(l_hist, l_incr, theta)
        case "decode":
            batch, context = spot.point
            return (DECODE_STEPS + 8) * cost.t_dec(batch, context, theta)
        case "mixed":
            batch, context, chunk = spot.point
            steps = (MIXED_LEAD + 2) * MIXED_PROMPTS
            return steps * cost.t_dec(batch, context, theta) + MIXED_PROMPTS * cost.t_mixed(batch, context, chunk, theta)
        case "history" | "increment":
            try:
                read = cost.t_kv(spot.args[0], theta, theta, spot.kind)
            except ProfileError:
                read = CoarseCostModel().t_kv(spot.args[0], theta, theta, spot.kind)
            return read + 2 * cost.t_pre(spot.args[0], 32, theta)
