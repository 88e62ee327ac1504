"""Cost functions of engines that run at another speed than the profile's: simulated ones, in quick or slow motion."""

from __future__ import annotations

from dataclasses import dataclass

from ampd.policy.types import CostModel, Direction


@dataclass(frozen=True, slots=True)
class ScaledCostModel:
    """All times of `cost` divided by `speed`."""

    cost: CostModel
    speed: float

    def t_pre(self, l_hist: int, l_incr: int, theta: int) -> float:
        return self.cost.t_pre(l_hist, l_incr, theta) / self.speed

    def t_dec(self, batch: int, context: int, theta: int) -> float:
        return self.cost.t_dec(batch, context, theta) / self.speed

    def t_mixed(self, batch: int, context: int, chunk: int, theta: int) -> float:
        return self.cost.t_mixed(batch, context, chunk, theta) / self.speed

    def t_kv(self, tokens: int, theta_src: int, theta_dst: int, direction: Direction) -> float:
        return self.cost.t_kv(tokens, theta_src, theta_dst, direction) / self.speed
