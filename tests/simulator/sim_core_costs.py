"""Costs that can be reckoned by hand, and short ways to write setups and sessions down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from ampd.config.schema import Policy
from ampd.policy.types import Direction
from ampd.simulator.types import Delays, Group, Setup, TraceRound, TraceSession

NO_DELAYS = Delays(decide_s=0.0, hop_s=0.0, report_s=0.5)


@dataclass(frozen=True)
class HandCosts:
    """Linear in everything; theta changes nothing."""

    prefill_s: float = 0.0
    token_s: float = 0.001
    history_s: float = 0.0
    step_s: float = 0.01
    sequence_s: float = 0.001
    context_s: float = 0.0
    moved_s: float = 0.0
    back_s: float | None = None  # of increments, if not as histories

    def t_pre(self, l_hist: int, l_incr: int, theta: int) -> float:
        return self.prefill_s + l_incr * (self.token_s + self.history_s * l_hist)

    def t_dec(self, batch: int, context: int, theta: int) -> float:
        return self.step_s + self.sequence_s * batch + self.context_s * context if batch else 0.0

    def t_mixed(self, batch: int, context: int, chunk: int, theta: int) -> float:
        return self.t_dec(batch, context, theta) + self.t_pre(0, chunk, theta)

    def t_kv(self, tokens: int, theta_src: int, theta_dst: int, direction: Direction) -> float:
        return tokens * (self.moved_s if direction == "history" or self.back_s is None else self.back_s)


def setup(prefill: int = 1, decode: int = 1, *, kv: int = 1_000_000, chunk: int = 512, most: int = 256, **fields: Any) -> Setup:
    """`prefill` and `decode` workers; `policy` may be a name, or a mapping of keys."""
    groups = tuple(
        Group(role, 1, replicas, kv, chunk, most) for role, replicas in (("prefill", prefill), ("decode", decode)) if replicas
    )
    policy = fields.pop("policy", "predictive")
    keys = {"name": policy} if isinstance(policy, str) else policy
    return Setup(
        groups, fields.pop("ttft_s", 1.0), fields.pop("itl_s", 0.1), Policy.model_validate(keys), **{"delays": NO_DELAYS, **fields}
    )


def single(prompt: int, output: int, at: float, name: str = "s") -> TraceSession:
    """A session of one round."""
    return TraceSession(name, (TraceRound(prompt, 0, output),), at)


def chat(name: str, at: float, new: Sequence[int], output: int, gap_s: float = 1.0) -> TraceSession:
    """A session whose rounds add so many tokens each to all that was before."""
    rounds, context = [], 0
    for i, tokens in enumerate(new):
        rounds.append(TraceRound(context + tokens, context, output, gap_s if i else 0.0, "tool"))
        context += tokens + output
    return TraceSession(name, tuple(rounds), at)


def agents(
    count: int, rate: float, seed: int, rounds: int = 6, new: int = 400, output: int = 40, gap_s: float = 2.0
) -> list[TraceSession]:
    """Sessions of random rounds, Poisson arrivals."""
    rng, at, sessions = Random(seed), 0.0, []
    for i in range(count):
        at += rng.expovariate(rate)
        tokens = [max(1, round(rng.expovariate(1 / new))) for _ in range(rng.randint(1, 2 * rounds - 1))]
        sessions.append(chat(f"agent-{i}", at, tokens, max(1, round(rng.expovariate(1 / output))), rng.expovariate(1 / gap_s)))
    return sessions
