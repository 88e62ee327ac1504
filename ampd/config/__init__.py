"""The configuration of a graph: one field = one YAML key = one `--set key=value` flag = one AMPD_* variable.

Order of precedence: flag, variable, file, default. A nested key `targets.ttft_s` has the variable AMPD_TARGETS__TTFT_S.
"""

from ampd.config.load import build_graph, config_variables, dump_graph, load_graph, load_sources
from ampd.config.schema import (
    BUILT_IN_MODELS,
    Coordinator,
    Frontend,
    Graph,
    Model,
    Policy,
    Reorder,
    Sessions,
    State,
    Targets,
    Transport,
    Worker,
)
from ampd.config.show import show_graph

__all__ = [
    "BUILT_IN_MODELS",
    "Coordinator",
    "Frontend",
    "Graph",
    "Model",
    "Policy",
    "Reorder",
    "Sessions",
    "State",
    "Targets",
    "Transport",
    "Worker",
    "build_graph",
    "config_variables",
    "dump_graph",
    "load_graph",
    "load_sources",
    "show_graph",
]
