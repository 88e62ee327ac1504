"""How much history a round truly has, computed from token ids alone: the yardstick for the ledger."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def shared_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix of two token sequences."""
    n = min(len(a), len(b))
    differs = np.asarray(a[:n]) != np.asarray(b[:n])
    return int(differs.argmax()) if differs.any() else n


def true_history(previous: Sequence[int], generated: Sequence[int], prompt: Sequence[int], block_size: int) -> int:
    """Leading tokens of `prompt`, in whole blocks, whose KV the round before left behind.

    `previous` and `generated` are that round's prompt and answer. The last generated token was never fed back, so it has no KV;
    the last token of `prompt` must be computed to get logits, so it is never history.
    """
    held = [*previous, *generated[:-1]]
    return shared_prefix(held, prompt[: len(prompt) - 1]) // block_size * block_size
