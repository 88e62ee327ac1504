"""Each routing policy on the real graph, by one key: what it decides, and that its rounds end well."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import get_args

import pytest
from whole_graph import Session, WholeGraph, words

from ampd.config import Policy
from ampd.launch.readiness import wait_graph

COORDINATORS = ("coordinator-0", "coordinator-1")

# What a session of two rounds meets on an idle graph, its second round mostly history. None: more than one answer is right.
DECISIONS: dict[str, list[tuple[str, str]] | None] = {
    "paper": [("remote", "prefill_slack"), ("remote", "prefill_slack")],
    "predictive": None,
    "dynamo": [("remote", "always_remote"), ("remote", "always_remote")],
    "conditional_disagg": [("remote", "not_bypassed"), ("local", "isl_bounded")],
    "ppd": [("remote", "first_round"), ("local", "short_increment")],
    "prefix_decider": [("remote", "long_increment"), ("local", "short_increment")],
    "local_only": [("local", "always_local"), ("local", "always_local")],
}


async def use(graph: WholeGraph, name: str) -> None:
    running = graph.running
    settings = running.graph.policy.model_copy(
        update={"name": name, "prefix_decider": running.graph.policy.prefix_decider.model_copy(update={"non_cached_tokens": 256})}
    )
    await running.change(running.graph.model_copy(update={"policy": settings}), COORDINATORS, 60)
    await wait_graph(running.url, running.graph.model.served_name, 60)


@pytest.fixture(scope="module", autouse=True)
async def own_policy(graph: WholeGraph) -> AsyncIterator[None]:
    yield
    await graph.running.change(graph.running.graph, COORDINATORS, 60)
    await wait_graph(graph.url, graph.running.graph.model.served_name, 60)


def test_every_policy_is_here() -> None:
    assert set(DECISIONS) == set(get_args(Policy.model_fields["name"].annotation))


@pytest.mark.parametrize("name", list(DECISIONS))
async def test_policy_decides_and_the_tokens_are_the_same(graph: WholeGraph, name: str) -> None:
    await use(graph, name)
    session = Session(graph, words(400, 31))
    rounds = [await session.round(), await session.round(words(60, 32))]
    await session.end()
    decided = [(r.facts.path, r.facts.reason) for r in rounds if r.facts is not None]
    if (expected := DECISIONS[name]) is not None:
        assert decided == expected
    else:
        assert {reason for _, reason in decided} <= {"least_finish", "least_violation"}
    assert [r.facts.recompute for r in rounds if r.facts is not None] == [None, None]
    assert rounds[1].facts is not None
    assert rounds[1].facts.l_hist == 384
    answer = [r.token_ids for r in rounds]
    assert answer == _first.setdefault("answer", answer)


_first: dict[str, list[list[int]]] = {}
