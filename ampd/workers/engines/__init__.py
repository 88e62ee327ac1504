"""Engines behind one protocol."""

from __future__ import annotations

from collections.abc import Sequence

from ampd.config import Graph, Worker
from ampd.workers.engines.base import Engine


def make_engines(graph: Graph, worker: Worker, replicas: Sequence[int], side_channel_port: int) -> list[Engine]:
    """The engines of some replicas of a worker group; not started yet. Several in one process are for simulated ones."""
    if worker.engine == "sim":
        from ampd.workers.engines.sim import SimEngine
        from ampd.workers.engines.sim_link import Fabric

        fabric = Fabric(graph.transport.host, side_channel_port, graph.transport.claim_timeout_s)
        return [SimEngine(graph, worker, index, fabric) for index in replicas]
    from ampd.workers.engines.vllm import VllmEngine

    return [VllmEngine(graph, worker, index, side_channel_port) for index in replicas]
