"""Costs that can be checked by hand, and short ways to write workers and decisions down."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from ampd.config import Policy
from ampd.policy.registry import make_policy
from ampd.policy.types import ClusterView, Decision, Direction, Round, WorkerView

BOUND = 100


class TableCosts:
    """Prefill 1 ms a new token and 0.1 ms a cached one; a step 10 ms a sequence; 10 us a token of history, 30 us of increment."""

    def t_pre(self, l_hist: int, l_incr: int, theta: int) -> float:
        return (l_incr + 0.1 * l_hist) / 1000 / theta

    def t_dec(self, batch: int, context: int, theta: int) -> float:
        return (0.01 * batch + 0.000001 * context) / theta

    def t_mixed(self, batch: int, context: int, chunk: int, theta: int) -> float:
        return self.t_dec(batch, context, theta) + chunk / 1000 / theta

    def t_kv(self, tokens: int, theta_src: int, theta_dst: int, direction: Direction) -> float:
        return tokens * {"history": 0.01, "increment": 0.03}[direction] / 1000 * theta_src / theta_dst


COSTS = TableCosts()


def prefill(id: int, queued_s: float = 0.0, **fields: Any) -> WorkerView:
    return WorkerView(id=id, role="prefill", epoch="p", theta=fields.pop("theta", 1), queued_s=queued_s, **fields)


def decode(id: int = BOUND, queued_s: float = 0.0, **fields: Any) -> WorkerView:
    fields = {"theta": 1, "kv_total": 1_000_000, "kv_free": 900_000, **fields}
    return WorkerView(id=id, role="decode", epoch="d", queued_s=queued_s, **fields)


def a_round(l_hist: int = 2000, l_incr: int = 100, number: int = 2, **fields: Any) -> Round:
    return Round("s", number, BOUND, l_hist, l_incr, **{"ttft_target_s": 2.0, "itl_target_s": 0.1, **fields})


def decide(
    settings: Policy, round: Round, prefills: Sequence[WorkerView], decodes: Sequence[WorkerView], seed: int = 0, **options: Any
) -> Decision:
    return make_policy(settings).route(round, ClusterView(prefills, decodes), COSTS, Random(seed), **options)
