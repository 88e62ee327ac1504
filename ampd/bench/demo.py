"""`ampd demo`: agents with tools, played against a graph with the model's real answers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ampd.bench.client import Client
from ampd.bench.demo_script import Plot, Trigger, make_plots
from ampd.bench.rounds import RoundRequest, RoundResult
from ampd.config import Graph

# The opening prompts arrive together and queue up, so the mean TTFT of `n` of them is (n + 1) / 2 prefills. It has to pass the
# gate alpha x target by a margin for the policy to start sending rounds elsewhere.
_OVERLOAD = 1.8
_OPENING_TOKENS = (500, 3500)  # of the runbook in a session's first prompt; the upper bound leaves room in an 8k context


@dataclass(frozen=True, slots=True)
class PlayedRound:
    """One round of the demo."""

    session: str
    trigger: Trigger
    result: RoundResult


@dataclass(slots=True)
class _Session:
    plot: Plot
    key: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[PlayedRound] = field(default_factory=list)

    async def play(self, client: Client, max_tokens: int, done: Callable[[], None], first: int, end: int) -> None:
        """Play turns [first, end). A failed round ends the session: what follows would lack its answer."""
        self.messages = self.messages or [{"role": "system", "content": self.plot.system}]
        for index, turn in enumerate(self.plot.turns[first:end], start=first):
            if turn.trigger == "tool":
                self.messages.append({"role": "tool", "tool_call_id": f"call_{index}", "content": turn.text})
            else:
                self.messages.append({"role": "user", "content": turn.text})
            result = await client.send(
                RoundRequest(
                    session=self.key, number=index + 1, max_tokens=max_tokens, messages=list(self.messages),
                    final=index + 1 == len(self.plot.turns),
                )
            )  # fmt: skip
            self.rounds.append(PlayedRound(self.plot.name, turn.trigger, result))
            done()
            if result.error is not None:
                return
            self.messages.append({"role": "assistant", "content": result.text or "(no answer)"})


async def play(
    url: str, graph: Graph, *, sessions: int, max_tokens: int, total: Callable[[int], None], done: Callable[[], None]
) -> list[list[PlayedRound]]:
    """Play the demo; one list of rounds a session. The first session opens alone: its speed sets the size of the others' openings.

    `total` is told the number of rounds once it is known, `done` is called after each.
    """
    run = uuid.uuid4().hex[:8]
    async with Client(url, graph.model.served_name) as client:
        lead = _Session(make_plots(1, _OPENING_TOKENS[0])[0], f"demo-0-{run}")
        total(sessions * len(lead.plot.turns))
        await lead.play(client, max_tokens, done, 0, 1)
        size = opening_tokens(lead.rounds[0].result, sessions, graph)
        crowd = [_Session(plot, f"demo-{i}-{run}") for i, plot in enumerate(make_plots(sessions, size)) if i > 0]
        ahead = lead.play(client, max_tokens, done, 1, len(lead.plot.turns)) if lead.rounds[0].result.error is None else _nothing()
        await asyncio.gather(ahead, *(s.play(client, max_tokens, done, 0, len(s.plot.turns)) for s in crowd))
    return [s.rounds for s in (lead, *crowd)]


def opening_tokens(first: RoundResult, sessions: int, graph: Graph) -> int:
    """How long the openings of the other sessions must be to load the prefill workers past their gate, tokens.

    `first` is a round that ran alone: its prompt length over its TTFT is this machine's prefill speed.
    """
    low, high = _OPENING_TOKENS
    if not first.ttft_s:
        return low
    queued = max(1, sessions - 1) / max(1, sum(w.replicas for w in graph.workers if w.role == "prefill"))
    wanted_s = _OVERLOAD * graph.policy.alpha * graph.targets.ttft_s / ((queued + 1) / 2)
    return round(min(max(wanted_s * first.prompt_tokens / first.ttft_s, low), high))


def both_paths(rounds: Sequence[PlayedRound]) -> bool:
    """Whether a local and a remote round occurred."""
    return {"local", "remote"} <= {r.result.facts.path for r in rounds if r.result.facts is not None}


async def _nothing() -> None:
    return None
