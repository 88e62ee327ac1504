"""Graphs and plans for the launcher's tests: stand-ins for all processes but Redis, which stays the real one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import standin

from ampd.config import Graph, build_graph
from ampd.launch.plan import Layout, ProcessSpec, plan

ONE_OF_EACH = [{"name": "prefill", "role": "prefill"}, {"name": "decode", "role": "decode"}]


def make_graph(model: Path, workers: Sequence[Mapping[str, Any]] = ONE_OF_EACH, **sections: Any) -> Graph:
    return build_graph({"name": "t", "model": {"path": str(model), "served_name": "m"}, "workers": list(workers), **sections})


def command(*flags: str) -> tuple[str, ...]:
    return (sys.executable, "-S", str(standin.__file__), *flags)


def stand_in_plan(notes: Path, flags: Mapping[str, Sequence[str]]) -> Callable[[Graph, Layout], list[ProcessSpec]]:
    """A `plan` of stand-ins. Each writes its name to `notes` when it stops in order. `flags` are further ones by process name."""

    def make(graph: Graph, layout: Layout) -> list[ProcessSpec]:
        return [_replaced(spec, graph) for spec in plan(graph, layout)]

    def _replaced(spec: ProcessSpec, graph: Graph) -> ProcessSpec:
        if spec.kind == "redis":
            return spec
        own = ["--name", spec.name, "--order", str(notes)]
        if spec.ready_file:
            own += ["--ready-file", str(spec.ready_file)]
        if spec.kind == "frontend":
            own += ["--http", str(graph.frontend.port), "--model", graph.model.served_name]
        return replace(spec, argv=command(*own, *flags.get(spec.name, ())))

    return make
