"""Drives a Coordinator over simulated workers as agents would."""

from __future__ import annotations

import asyncio
import itertools
from random import Random
from typing import Any

from sim_caller import SimCaller
from sim_cluster import SimCluster
from sim_model import answer_to, make_graph

from ampd.config import Graph
from ampd.coordinator.coordinator import Coordinator
from ampd.cost_model import CoarseCostModel
from ampd.policy.types import CostModel
from ampd.state.base import StateStore

_filler = itertools.count(1)


def fresh_tokens(n: int) -> list[int]:
    """Tokens that no other call gave."""
    start = next(_filler) * 97
    return [(start + i * 13) % 40_000 + 1 for i in range(n)]


def ask(tokens: list[int], session: str | None = "s", *, max_tokens: int = 3, final: bool = False, **more: Any) -> dict[str, Any]:
    """A preprocessed request as Dynamo 1.6.1 sends it."""
    raw: dict[str, Any] = {
        "model": "m",
        "token_ids": list(tokens),
        "stop_conditions": {"max_tokens": max_tokens, "min_tokens": None},
        "sampling_options": {"n": None, "guided_decoding": None},
        "output_options": {"prompt_logprobs": None},
        "eos_token_ids": [2],
        "annotations": [],
        "routing": {},
        "extra_args": {"nvext": {"extra_fields": ["engine_data"]}},
    }
    if session is not None:
        raw["agent_context"] = {"session_id": session, "session_final": final}
    return {**raw, **more}


class Answer:
    """The collected outputs of a round."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, Any]] = []

    @property
    def tokens(self) -> list[int]:
        return [t for output in self.outputs for t in output["token_ids"]]

    @property
    def ampd(self) -> dict[str, Any]:
        return self.outputs[-1]["engine_data"]["ampd"]

    @property
    def usage(self) -> dict[str, Any]:
        return self.outputs[-1]["completion_usage"]


class Driver:
    """One Coordinator and what it left behind."""

    def __init__(
        self, cluster: SimCluster, store: StateStore, graph: Graph | None = None, seed: int = 1, cost: CostModel | None = None
    ) -> None:
        self.cluster, self.store = cluster, store
        self.graph = graph or make_graph()
        self.coordinator = Coordinator(self.graph, store, cluster, cost or CoarseCostModel(), Random(seed))

    async def round(self, raw: dict[str, Any], caller: SimCaller | None = None, into: Answer | None = None) -> Answer:
        """Serve one request to its end."""
        answer = into or Answer()
        async for output in self.coordinator.serve(raw, caller or SimCaller()):
            answer.outputs.append(output)
        return answer

    async def correct(self, tokens: list[int], session: str | None = "s", **more: Any) -> Answer:
        """Serve a round and check its answer against a plain engine's."""
        raw = ask(tokens, session, **more)
        answer = await self.round(raw)
        assert answer.tokens == answer_to(tokens, raw["stop_conditions"]["max_tokens"])
        return answer

    async def settle(self) -> None:
        """Wait until nothing runs anywhere, graces included."""
        await asyncio.sleep(0)
        await self.coordinator.drain(5.0)
        await self.cluster.quiet()
        await asyncio.sleep(2.5 * self.graph.transport.read_grace_s)
        await self.coordinator.drain(5.0)

    async def stored_pins(self, *sessions: str) -> set[str]:
        """References of the handles that these sessions hold in the store, which is put back as it was."""
        refs = set()
        for session in sessions:
            key = self.coordinator._keys.find(ask([1], session), [1], None)
            assert key is not None
            opened = await self.store.open_round(key.id)
            if opened.session is not None and opened.session.handle is not None:
                refs.add(opened.session.handle.ref)
                await self.store.close_round(key.id, opened.session, None)
        return refs

    async def queued(self) -> int:
        """Tasks waiting anywhere, as the store shows them."""
        return sum([len(await self.store.queue(worker)) for worker in self.cluster.workers])

    async def check_clean(self, *sessions: str, lost: int = 0) -> None:
        """Every pin on a live worker is some session's, nothing is queued; `lost` sessions' handles are to ended pins."""
        await self.settle()
        stored = await self.stored_pins(*sessions)
        assert self.cluster.pins() <= stored
        assert len(stored - self.cluster.pins()) == lost
        assert await self.queued() == 0
