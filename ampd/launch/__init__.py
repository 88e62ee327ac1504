"""Run a graph as local processes."""

from ampd.launch.models import resolve_model
from ampd.launch.running import RunningGraph, running_graph

__all__ = ["RunningGraph", "resolve_model", "running_graph"]
