"""What a state store needs to know of its graph's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from ampd.config import Graph


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Seconds throughout.

    `window_s` is kept in whole seconds, rounded up. A worker silent for `stale_after_s` leaves the view; after `reap_after_s` its
    row, window and queue are deleted.
    """

    deadline_s: float = 0.005
    max_pending: int = 4096
    stale_after_s: float = 5.0
    reap_after_s: float = 60.0
    window_s: float = 10.0
    idle_ttl_s: float = 300.0

    @staticmethod
    def of(graph: Graph) -> StoreSettings:
        """The settings a graph's configuration asks for."""
        state = graph.state
        return StoreSettings(
            deadline_s=state.deadline_ms / 1000,
            max_pending=state.max_pending,
            stale_after_s=state.stale_after_s,
            reap_after_s=10 * state.stale_after_s,
            window_s=graph.policy.window_s,
            idle_ttl_s=graph.sessions.idle_ttl_s,
        )
