"""What the prefill workers' own caches are believed to hold of a session.

A prefill leaves its prompt in the worker's prefix cache. Each worker's `kv_written` counts the tokens that it has written there, so
it is the clock by which the cache forgets: as the pool (less what is pinned) is written over, vLLM gives up the least recently used
blocks, of one prompt its tail first. So what is left is the pool less what has been written since. A wrong guess costs time only:
the worker reads or computes what it does not find.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Protocol

from ampd.policy.types import ClusterView

_NOTHING: Mapping[int, int] = {}


class HeldPrompt(Protocol):
    """`tokens` leading tokens that a session's prefill left in a worker's prefix cache, at `written` on the worker's clock."""

    @property
    def worker(self) -> int: ...
    @property
    def epoch(self) -> str: ...
    @property
    def tokens(self) -> int: ...
    @property
    def written(self) -> int: ...


def still_held(held: Sequence[HeldPrompt], matched: int, view: ClusterView) -> Mapping[int, int]:
    """Leading tokens of the prompt that each worker still holds, by worker id; `matched` of the prompt are the session's."""
    if not held or not matched:
        return _NOTHING
    known = {h.worker: h for h in held}
    found = {}
    for worker in chain(view.prefill, view.decode):
        h = known.get(worker.id)
        if h is not None and h.epoch == worker.epoch:
            left = worker.kv_total - worker.kv_pinned - (worker.kv_written - h.written)
            if left > 0:
                found[worker.id] = min(h.tokens, matched, left)
    return found
