"""A running graph as the tests drive and inspect it."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass
from random import Random
from typing import Any

from ampd.bench.client import Client
from ampd.bench.rounds import RoundRequest, RoundResult
from ampd.launch import RunningGraph
from ampd.state.base import StateStore

_names = itertools.count()


def words(n: int, seed: int) -> list[int]:
    rng = Random(seed)
    return [rng.randrange(300, 1500) for _ in range(n)]


@dataclass
class WholeGraph:
    running: RunningGraph
    client: Client
    store: StateStore

    @property
    def url(self) -> str:
        return self.running.url

    async def settled(self, timeout_s: float = 40) -> None:
        """Wait until no session is bound, and on no worker a task waits or runs or a block of KV is in use."""
        left: object = None
        try:
            async with asyncio.timeout(timeout_s):
                while left := await self._left():
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"left behind after {timeout_s} s: {left}") from None

    def ends(self) -> list[dict[str, Any]]:
        """The Coordinators' lines on the rounds that are over."""
        mark = '{"event":"ampd.round"'
        lines = [line for log in (self.running.run_dir / "logs").glob("coordinator-*.log") for line in log.read_text().splitlines()]
        return [json.loads(line[line.index(mark) :]) for line in lines if mark in line]

    async def _left(self) -> list[str]:
        view = await self.store.view()
        left = [f"{sessions} sessions"] if (sessions := await self.store.sessions()) else []
        for w in (*view.prefill, *view.decode):
            used = w.kv_total - w.kv_free
            if w.running or w.queued_tasks or w.kv_pinned or used:
                left.append(f"{w.role}: {w.running} running, {w.queued_tasks} queued, {w.kv_pinned} pinned, {used} tokens in use")
        return left if len(view.prefill) == len(view.decode) == 1 else [*left, "a worker is missing"]


class Session:
    """A client's session: every prompt extends the one before and the answer to it."""

    def __init__(self, graph: WholeGraph, prompt: list[int], name: str | None = None) -> None:
        self.name = name or f"test-session-{next(_names)}"
        self._graph, self.tokens, self._round = graph, prompt, 0

    async def round(self, more: list[int] | None = None, max_tokens: int = 8, *, final: bool = False) -> RoundResult:
        """Play one round. Fails the test when the round fails."""
        result = await self.try_round(more, max_tokens, final=final)
        assert result.error is None, result.error
        self.tokens = [*self.tokens, *result.token_ids]
        return result

    async def try_round(self, more: list[int] | None = None, max_tokens: int = 8, *, final: bool = False) -> RoundResult:
        self.tokens = [*self.tokens, *(more or [])]
        self._round += 1
        request = RoundRequest(
            prompt=list(self.tokens),
            max_tokens=max_tokens,
            session=self.name,
            number=self._round,
            final=final,
            extra={"ignore_eos": True},
        )
        return await self._graph.client.send(request)

    async def end(self) -> RoundResult:
        return await self.round(max_tokens=1, final=True)
