"""Engines behind one protocol."""

from __future__ import annotations

from ampd.config import Graph, Worker
from ampd.workers.engines.base import Engine


def make_engine(graph: Graph, worker: Worker, index: int, side_channel_port: int) -> Engine:
    """The engine that a worker group asks for; not started yet."""
    from ampd.workers.engines.vllm import VllmEngine

    return VllmEngine(graph, worker, index, side_channel_port)
