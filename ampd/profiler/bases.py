"""Long prompts that the engines' prefix caches hold: measurements use their beginnings, so that no KV is computed twice."""

from __future__ import annotations

from collections.abc import Iterable

from ampd.profiler.jobs import RandomTokens
from ampd.profiler.spots import Spot


class Bases:
    """`prefill`: the one on the prefill engine. `decode`: one for each sequence of the largest batch, on the decode engine; every
    sequence has KV of its own, as real sessions have.
    """

    def __init__(self, spots: Iterable[Spot], tokens: RandomTokens) -> None:
        prefill, decode = base_lengths(spots)
        self.prefill = tokens.take(prefill)
        self.decode = [tokens.take(length) for length in decode]


def base_lengths(spots: Iterable[Spot]) -> tuple[int, list[int]]:
    """Tokens of the prefill engine's base, and of each of the decode engine's."""
    prefill, decode = 0, [0]
    for spot in spots:
        if spot.kind in ("prefill", "increment"):
            prefill = max(prefill, spot.args[0])
        else:
            batch, context = (1, spot.args[0]) if spot.kind == "history" else spot.args[:2]
            decode += [0] * (batch - len(decode))
            decode[:batch] = [max(length, context) for length in decode[:batch]]
    # One token more: a prompt that ends where a cached block ends would not be cached to its end.
    return prefill, [length + 1 for length in decode]
