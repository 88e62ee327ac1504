"""Replay text sessions: sessions side by side, the rounds of one session one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ampd.bench.client import Client
from ampd.bench.history import true_history
from ampd.bench.rounds import RoundRequest, RoundResult
from ampd.bench.text_trace import FittedPrompt


@dataclass(frozen=True, slots=True)
class Script:
    """One session ready to send: its key on the wire and its prompts."""

    key: str
    prompts: Sequence[FittedPrompt]


@dataclass(slots=True)
class Replayed:
    """One round: what was sent, what came back, what history it truly had (None: the round before failed, so nobody knows)."""

    prompt: FittedPrompt
    result: RoundResult
    true_history: int | None = None
    reference: RoundResult | None = None

    @property
    def short_history(self) -> bool:
        """The ledger found less than the recording shares with the round before."""
        facts = self.result.facts
        return facts is not None and self.true_history is not None and facts.l_hist < self.true_history

    @property
    def wrong_history(self) -> bool:
        """The ledger found more than the recording shares: KV of other tokens would have been used."""
        facts = self.result.facts
        return facts is not None and self.true_history is not None and facts.l_hist > self.true_history

    @property
    def differs(self) -> bool:
        """The reference gave other tokens, or either failed. Texts are compared only where token ids are missing: detokenizers
        disagree on an answer that ends inside a character.
        """
        mine, other = self.result, self.reference
        if other is None:
            return False
        if mine.error is not None or other.error is not None:
            return True
        return mine.token_ids != other.token_ids if mine.token_ids and other.token_ids else mine.text != other.text


async def replay(
    client: Client, scripts: Sequence[Script], *, max_tokens: int, concurrency: int, done: Callable[[], None] = lambda: None
) -> list[list[RoundResult]]:
    """Send every round. One list a session, in the order of `scripts`; `done` is called after each round."""
    gate = asyncio.Semaphore(concurrency)

    async def session(script: Script) -> list[RoundResult]:
        results = []
        async with gate:
            for number, prompt in enumerate(script.prompts, start=1):
                last = number == len(script.prompts)
                request = RoundRequest(session=script.key, number=number, prompt=prompt.text, max_tokens=max_tokens, final=last)
                results.append(await client.send(request))
                done()
        return results

    return list(await asyncio.gather(*(session(s) for s in scripts)))


def judge(scripts: Sequence[Script], results: Sequence[Sequence[RoundResult]], block_size: int) -> list[Replayed]:
    """Join prompts and answers, and compute each round's true history from the token ids of the round before."""
    rounds = []
    for script, answers in zip(scripts, results, strict=True):
        previous: Replayed | None = None
        for prompt, result in zip(script.prompts, answers, strict=True):
            row = Replayed(prompt, result, _truth(previous, prompt, block_size))
            rounds.append(row)
            previous = row
    return rounds


def compare(rounds: Sequence[Replayed], reference: Sequence[Sequence[RoundResult]]) -> None:
    """Lay a reference engine's answers beside the rounds they answer."""
    for row, other in zip(rounds, (r for session in reference for r in session), strict=True):
        row.reference = other


def _truth(previous: Replayed | None, prompt: FittedPrompt, block_size: int) -> int | None:
    if previous is None:
        return 0
    if previous.result.error is not None:
        return None
    return true_history(previous.prompt.token_ids, previous.result.token_ids, prompt.token_ids, block_size)
