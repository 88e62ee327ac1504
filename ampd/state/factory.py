"""The store that a graph's configuration asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping

from ampd.config import Graph
from ampd.errors import ConfigError
from ampd.state.redis_store import RedisStore
from ampd.state.resilient import ResilientStore
from ampd.state.settings import StoreSettings


def open_store(graph: Graph, environ: Mapping[str, str] | None = None) -> ResilientStore:
    """The store of a graph, not connected yet: Redis, bridged over its outages.

    Raises ConfigError or SetupError naming the setting to change.
    """
    environ = os.environ if environ is None else environ
    state = graph.state
    if state.url == "embedded":
        raise ConfigError("state.url 'embedded' is resolved by `ampd serve`; a process started by itself needs the URL of a Redis")
    password = None
    if state.password_env is not None:
        password = environ.get(state.password_env)
        if not password:
            raise ConfigError(f"state.password_env {state.password_env!r}: that environment variable is not set")
    settings = StoreSettings.of(graph)
    return ResilientStore(RedisStore(state.url, password, graph.name, settings), settings)
