"""A shortlist has every near-equal of the best, with the score that a look at all workers gives it."""

from __future__ import annotations

from math import inf
from random import Random
from typing import Literal

import pytest
from policy_cases import BOUND, COSTS, a_round, decode, prefill

from ampd.policy import shortlist
from ampd.policy.forecast import Forecast
from ampd.policy.placing import Case
from ampd.policy.types import ClusterView


def forecast(rng: Random, mode: Literal["slack", "chunked", "exclusive"]) -> Forecast:
    """A round on a cluster of many workers, some of which hold part of its prompt."""

    def load() -> dict[str, float]:
        factors = {f"t_{fn}_factor": rng.choice([1.0, rng.uniform(0.25, 4.0)]) for fn in ("pre", "dec", "mixed", "kv")}
        return {"queued_s": rng.uniform(0, 0.5), "link_s": rng.choice([0.0, 0.0, 0.1]), "theta": rng.choice([1, 2]), **factors}

    prefills = [prefill(i, **load()) for i in range(30)]
    batches = [{"running": rng.randrange(4), "context": rng.randrange(150_000)} for _ in range(30)]
    decodes = [decode(BOUND + i, **load(), **batch) for i, batch in enumerate(batches)]
    held = {rng.randrange(30) + first: rng.randrange(2000) for first in (0, 0, BOUND + 1)}
    size = rng.choice([(1000, 1000), (1000, 1000), (20_000, 50), (100_000, 10)])
    return Forecast(Case(a_round(*size, held=held), ClusterView(prefills, decodes), COSTS, rng), mode, 512, 0.09)


@pytest.mark.parametrize("mode", ["slack", "chunked", "exclusive"])
def test_every_near_equal_is_on_the_list(mode: Literal["slack", "chunked", "exclusive"]) -> None:
    near_equals = left_out = 0
    for seed in range(300):
        rng = Random(seed)
        case = forecast(rng, mode)
        near, bound = rng.choice([0.0, 0.05, 0.3]), rng.choice([inf, rng.uniform(0.5, 2.0)])
        for find in (shortlist.prefill_workers, shortlist.decode_workers):
            scores = {w.id: s for w, s in zip(*find(case, near=inf), strict=True)}
            listed = {w.id: s for w, s in zip(*find(case, bound, near), strict=True)}
            limit = min(bound, min(scores.values(), default=inf) * (1 + near))
            expected = {id: s for id, s in scores.items() if s <= limit}
            assert {id: s for id, s in listed.items() if s <= limit} == expected
            near_equals += len(expected)
            left_out += len(scores) - len(listed)
    assert near_equals > 300
    assert left_out > 3000
