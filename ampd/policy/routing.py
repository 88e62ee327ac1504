"""`policy.name: paper`. Adaptive routing: Algorithm 1 of the paper, over Equations 1 and 2.

Side by side with the pseudo-code:

    for i in random_order(prefill workers):                        for worker in _random_order(...)
        if TTFT_hat_i <= alpha * TTFT_thres: remote to i               if _ttft_hat(worker) <= ...
    if ITL_hat_d <= beta * ITL_thres: local on d                   if _itl_hat(decode, ...) <= ...
    argmin of t_local (Eq. 1) and t_remote_i (Eq. 2)               _Equations.local and .remote

The paper does not say what an empty window means. Here the mean of an empty window is what a round arriving now would meet as far
as is known: for a prefill worker the seconds already queued (an idle worker has slack, one that has finished nothing in a whole
window while a long queue waits has not), for a decode worker the cost model's step time of its running batch (0 when idle).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from ampd.policy.placing import Case, Router
from ampd.policy.types import ClusterView, CostModel, Decision, Path, Reason, Round, WorkerView


@dataclass(frozen=True, slots=True)
class RoutingSettings:
    """Algorithm 1's slack factors: the share of a target under which a windowed mean counts as slack."""

    alpha: float = 0.9
    beta: float = 0.85


def route(
    round: Round,
    view: ClusterView,
    cost: CostModel,
    settings: RoutingSettings,
    rng: Random,
    forced: Path | None = None,
    local_reason: Reason | None = None,
) -> Decision:
    """`paper` in one call; see `placing.RoutingPolicy.route`."""
    return Router(Paper(settings.alpha, settings.beta)).route(round, view, cost, rng, forced, local_reason)


@dataclass(frozen=True, slots=True)
class Paper:
    """Algorithm 1. Its decisions' estimates cover every candidate when costs decided, and the chosen one and "local" otherwise."""

    alpha: float
    beta: float

    def choose(self, case: Case) -> Decision:
        if not case.prefill:
            return self.local(case, "only_local")
        limit = self.alpha * case.round.ttft_target_s
        for worker in _random_order(case.prefill, case.rng):
            if _ttft_hat(worker) <= limit:
                return _Equations(case).remote_decision(worker, "prefill_slack")
        if _itl_hat(case.decode, case.cost) <= self.beta * case.round.itl_target_s:
            return self.local(case, "decode_slack")
        return _least_cost(_Equations(case), case)

    def local(self, case: Case, reason: Reason) -> Decision:
        return _Equations(case).local_decision(reason)

    def remote(self, case: Case, reason: Reason) -> Decision | None:
        """The least of Equation 2; equal candidates are chosen among at random."""
        if not case.prefill:
            return None
        equations = _Equations(case)
        return equations.remote_decision(_argmin(case.prefill, equations.remotes(case.prefill), case.rng), reason)


def _least_cost(equations: _Equations, case: Case) -> Decision:
    """Line 6: the least of Equations 1 and 2; equal remote candidates are chosen among at random, a tie with local stays local."""
    seconds = equations.remotes(case.prefill)
    estimates = {f"remote:{w.id}": s for w, s in zip(case.prefill, seconds, strict=True)}
    if equations.local() <= min(seconds):
        return equations.local_decision("cost_local", estimates)
    return equations.remote_decision(_argmin(case.prefill, seconds, case.rng), "cost_remote", estimates)


def _argmin(workers: Sequence[WorkerView], seconds: Sequence[float], rng: Random) -> WorkerView:
    """A random one of those with the least seconds."""
    least = min(seconds)
    best = [w for w, s in zip(workers, seconds, strict=True) if s == least]
    return best[int(rng.random() * len(best))]


def _ttft_hat(worker: WorkerView) -> float:
    return worker.queued_s if worker.ttft_s is None else worker.ttft_s


def _itl_hat(worker: WorkerView, cost: CostModel) -> float:
    if worker.itl_s is not None:
        return worker.itl_s
    return cost.t_dec(worker.running, worker.context, worker.theta) if worker.running > 0 else 0.0


def _random_order(workers: Sequence[WorkerView], rng: Random) -> Iterator[WorkerView]:
    """A uniformly random permutation, drawn one by one: the first worker usually has slack."""
    pool = list(workers)
    for left in range(len(pool), 0, -1):
        i = int(rng.random() * left)
        yield pool[i]
        pool[i] = pool[left - 1]


class _Equations:
    """Equations 1 and 2 for one round. Workers of equal theta share their cost terms, so a decision costs O(workers) additions."""

    __slots__ = ("_case", "_own", "_t_pre")

    def __init__(self, case: Case) -> None:
        self._case = case
        self._t_pre: dict[int, float] = {}
        self._own: dict[int, float] = {}

    def local(self) -> float:
        """Equation 1: own prefill plus the prefills queued on the decode worker."""
        return self.t_pre(self._case.decode.theta) + self._case.decode.queued_s

    def remotes(self, workers: Sequence[WorkerView]) -> list[float]:
        """Equation 2 for each: own prefill, both KV transfers, and the worker's queue."""
        own = {theta: self.own(theta) for theta in {w.theta for w in workers}}
        return [own[w.theta] + w.queued_s for w in workers]

    def t_pre(self, theta: int) -> float:
        if theta not in self._t_pre:
            round = self._case.round
            self._t_pre[theta] = self._case.cost.t_pre(round.l_hist, round.l_incr, theta)
        return self._t_pre[theta]

    def own(self, theta: int) -> float:
        """Equation 2 without the queue: prefill, history from the decode worker, increment back."""
        if theta not in self._own:
            round, cost, theta_d = self._case.round, self._case.cost, self._case.decode.theta
            history = cost.t_kv(round.l_hist, theta_d, theta, "history")
            increment = cost.t_kv(round.l_incr, theta, theta_d, "increment")
            self._own[theta] = self.t_pre(theta) + history + increment
        return self._own[theta]

    def local_decision(self, reason: Reason, estimates: dict[str, float] | None = None) -> Decision:
        decode = self._case.decode
        return Decision("local", decode.id, reason, self.t_pre(decode.theta), {"local": self.local(), **(estimates or {})})

    def remote_decision(self, worker: WorkerView, reason: Reason, estimates: dict[str, float] | None = None) -> Decision:
        seconds = estimates or {f"remote:{worker.id}": self.own(worker.theta) + worker.queued_s}
        return Decision("remote", worker.id, reason, self.t_pre(worker.theta), {"local": self.local(), **seconds})
