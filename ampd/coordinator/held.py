"""What a session remembers of the prefill workers' own caches; `ampd.policy.held` reckons what is left of it."""

from __future__ import annotations

from collections.abc import Sequence

from ampd.messages import PrefillResult
from ampd.policy.held import still_held
from ampd.state.base import Held

__all__ = ["after_prefill", "still_held"]

_MOST = 4  # workers remembered for a session


def after_prefill(held: Sequence[Held], result: PrefillResult, tokens: int) -> tuple[Held, ...]:
    """What is held once a prefill of `tokens` tokens has left its prompt on the worker that did it; the latest first."""
    worker = result.handle.worker
    fresh = Held(worker, result.handle.epoch, tokens, result.kv_written)
    return (fresh, *(h for h in held if h.worker != worker))[:_MOST]
