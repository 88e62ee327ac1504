"""From a graph's worker to vLLM's engine arguments and process environment. Imports vLLM only inside functions."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

from ampd.config import Graph, Worker
from ampd.errors import ConfigError
from ampd.profiles import profile_of
from ampd.workers.kv.settings import KvSettings

CONNECTOR = "ampd.workers.kv.connector"
SCHEDULERS = {
    "prefill": "ampd.workers.kv.scheduler.AmpdPrefillScheduler",
    "decode": "ampd.workers.kv.decode_scheduler.AmpdDecodeScheduler",
}
# A prefill worker's pin lives this long unless the decode worker that will read it renews it, seconds.
PREFILL_LEASE_S = 30
# A decode worker's pin outlives its session's idle time by this, so that the session's closing ends it and not a race.
DECODE_MARGIN_S = 60
# Nobody starts to read a pin that ends within this, seconds: a decode worker's first renewal of a lease takes up to a sixth of it.
READ_MARGIN_S = 10
# Running requests of a prefill worker: one computes, one has read ahead, the others are leaving.
_PREFILL_SEQS = 8
_DECODE_SEQS = 256

# Engine arguments that have a key of their own in the graph, or that the engine could not work without.
_OWNED = {
    "model": "model.path",
    "served_model_name": "model.served_name",
    "dtype": "model.dtype",
    "block_size": "model.block_size",
    "max_model_len": "model.max_model_len",
    "tensor_parallel_size": "workers[].tensor_parallel",
    "max_num_batched_tokens": "workers[].prefill_chunk",
    "long_prefill_token_threshold": "workers[].prefill_chunk",
    "kv_transfer_config": "transport",
    "scheduler_cls": None,
    "scheduling_policy": None,
    "enable_prefix_caching": None,
    "disable_log_stats": None,
    "data_parallel_size": None,
}


def engine_args(graph: Graph, worker: Worker, cpu: bool) -> dict[str, Any]:
    """Keyword arguments of vLLM's AsyncEngineArgs. Raises ConfigError, or ProfileError when the graph's profile cannot be used."""
    _check_extra(worker)
    if graph.profile is not None:
        model = graph.model
        profile_of(
            graph.profile,
            model=model.served_name,
            thetas=[worker.tensor_parallel],
            block_size=model.block_size,
            foreign=graph.foreign_profile,
        )
    extra = dict(worker.engine_args)
    prefill = worker.role == "prefill"
    seqs = int(extra.pop("max_num_seqs", _PREFILL_SEQS if prefill else _DECODE_SEQS))
    chunk = worker.prefill_chunk
    return {
        "model": graph.model.path,
        "served_model_name": graph.model.served_name,
        "dtype": graph.model.dtype,
        "block_size": graph.model.block_size,
        "max_model_len": graph.model.max_model_len,
        "tensor_parallel_size": worker.tensor_parallel,
        "enable_prefix_caching": True,
        "max_num_seqs": seqs,
        # The scheduler looks at the next request, to start its read, only while a step has budget left.
        "max_num_batched_tokens": max(chunk, seqs) if prefill else chunk + seqs,
        "long_prefill_token_threshold": chunk - max(8, chunk // 16) if prefill else chunk,
        "enforce_eager": cpu,
        "scheduler_cls": SCHEDULERS[worker.role],
        "kv_transfer_config": _kv_transfer(graph, worker),
        "disable_log_stats": True,
        **extra,
    }


def _kv_transfer(graph: Graph, worker: Worker) -> dict[str, Any]:
    settings = KvSettings(
        local_prefill=graph.policy.local_prefill,
        itl_target_s=graph.targets.itl_s,
        prefill_chunk=worker.prefill_chunk,
        theta=worker.tensor_parallel,
        profile=graph.profile,
        foreign_profile=graph.foreign_profile,
    )
    return {
        "kv_connector": "AmpdConnector",
        "kv_connector_module_path": CONNECTOR,
        "kv_role": "kv_both",
        "kv_buffer_device": graph.transport.buffer_device,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "bidirectional_kv_xfer": True,
            "kv_recompute_threshold": graph.transport.min_read_tokens,
            "decoder_kv_blocks_ttl": decode_pin_s(graph),
            "kv_lease_duration": PREFILL_LEASE_S,
            **settings.section(),
        },
    }


def decode_pin_s(graph: Graph) -> float:
    """How long a decode worker keeps a session's KV without hearing of it, seconds."""
    return graph.sessions.idle_ttl_s + DECODE_MARGIN_S


def _check_extra(worker: Worker) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = {field.name for field in fields(AsyncEngineArgs)}
    for name in worker.engine_args:
        key = f"workers[{worker.name}].engine_args.{name}"
        if name in _OWNED:
            instead = _OWNED[name]
            raise ConfigError(f"{key}: set by ampd" + (f"; use {instead}" if instead else ", remove it"))
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise ConfigError(f"{key}: vLLM has no such argument" + (f" (did you mean {near[0]}?)" if near else ""))


def environment(graph: Graph, worker: Worker, index: int, side_channel_port: int) -> dict[str, str]:
    """Variables that the engine's processes read. Raises ConfigError when a replica has no cores."""
    env = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": graph.transport.host,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel_port),
    }
    if worker.cores or worker.kv_cache_gib is not None:
        # A CPU engine would compile a few small functions as C++: 20 s of the first round, and not every machine has a compiler.
        env["TORCHDYNAMO_DISABLE"] = "1"
    if worker.cores:
        if index >= len(worker.cores):
            raise ConfigError(
                f"workers[{worker.name}].cores = {worker.cores}: has no entry for replica {index}; give one a replica or none"
            )
        env["VLLM_CPU_OMP_THREADS_BIND"] = worker.cores[index]
    if worker.kv_cache_gib is not None:
        env["VLLM_CPU_KVCACHE_SPACE"] = str(worker.kv_cache_gib)
    if graph.transport.ucx_tls is not None:
        env["UCX_TLS"] = graph.transport.ucx_tls
    return {**env, **worker.env}


@contextmanager
def applied(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the processes started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
