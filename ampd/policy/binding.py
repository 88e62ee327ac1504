"""Binding: which decode worker a new session lives on (the paper binds by memory usage)."""

from __future__ import annotations

from ampd.errors import NoWorkers
from ampd.policy.types import ClusterView, WorkerView


def kv_room(worker: WorkerView) -> int:
    """Tokens of KV that a new session can count on: free ones less those promised to sessions bound just now. May be negative."""
    return worker.kv_free - worker.kv_promised


def choose_decode(view: ClusterView, tokens: int) -> WorkerView:
    """The decode worker with the most KV room for a session whose first prompt has `tokens` tokens.

    Workers that can never hold the prompt are passed over while another can. Ties go to the fewest running rounds, then to the
    lowest id. Draining workers take no new session. Raises NoWorkers when none is left.
    """
    live = [w for w in view.decode if not w.draining]
    if not live:
        raise NoWorkers("no live decode worker takes new sessions; are the decode workers running?")
    fitting = [w for w in live if w.kv_total >= tokens] or live
    return min(fitting, key=lambda w: (-kv_room(w), w.running, w.id))
