"""A small graph on a shipped profile, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

PROFILES = Path(__file__).parents[2] / "configs" / "profiles"


def graph_data(**changes: Any) -> dict[str, Any]:
    return {
        "name": "simulated",
        "model": {"served_name": "llama-3.1-70b", "path": "tiny", "block_size": 32, "max_model_len": 131072},
        "targets": {"ttft_s": 0.3, "itl_s": 0.03},
        "policy": {"name": "predictive"},
        "profile": str(PROFILES / "llama-3.1-70b-h200.json"),
        "workers": [
            {"name": "p", "role": "prefill", "replicas": 1, "tensor_parallel": 2},
            {"name": "d", "role": "decode", "replicas": 1, "tensor_parallel": 4},
        ],
    } | changes  # fmt: skip


def write_graph(folder: Path, **changes: Any) -> Path:
    path = folder / "graph.yaml"
    path.write_text(yaml.safe_dump(graph_data(**changes)))
    return path
