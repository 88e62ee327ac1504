"""The cost model of a graph without a profile: right in shape, rough in size."""

from __future__ import annotations

from dataclasses import dataclass

from ampd.policy.types import Direction


@dataclass(frozen=True, slots=True)
class CoarseCostModel:
    """Constants of a 135M-parameter model on one CPU core (256, 1,024 and 4,096 tokens: 0.09, 0.32 and 2.5 s; 13 ms a decode step).

    Theta divides the per-token terms. Only the order of its answers means anything on other hardware: measure with `ampd profile`.
    """

    step_s: float = 12e-3
    token_s: float = 290e-6
    attention_s: float = 155e-9  # per pair of a new token and a token it attends to
    sequence_s: float = 1e-3
    context_s: float = 1e-6
    transfer_s: float = 5e-3
    transferred_token_s: float = 5e-6

    def t_pre(self, l_hist: int, l_incr: int, theta: int) -> float:
        return self.step_s + l_incr * (self.token_s + self.attention_s * (l_hist + l_incr / 2)) / theta

    def t_dec(self, batch: int, context: int, theta: int) -> float:
        return self.step_s + (self.sequence_s * batch + self.context_s * context) / theta

    def t_mixed(self, batch: int, context: int, chunk: int, theta: int) -> float:
        return self.t_dec(batch, context, theta) + self.t_pre(0, chunk, theta) - self.step_s

    def t_kv(self, tokens: int, theta_src: int, theta_dst: int, direction: Direction) -> float:
        return self.transfer_s + self.transferred_token_s * tokens if tokens > 0 else 0.0
