"""Adaptive routing: Algorithm 1 of the paper, over Equations 1 and 2.

Side by side with the pseudo-code:

    for i in random_order(prefill workers):                        for worker in _random_order(...)
        if TTFT_hat_i <= alpha * TTFT_thres: remote to i               if _ttft_hat(worker) <= ...
    if ITL_hat_d <= beta * ITL_thres: local on d                   if _itl_hat(decode, ...) <= ...
    argmin of t_local (Eq. 1) and t_remote_i (Eq. 2)               min over _Estimator.local and .remote

The paper does not say what an empty window means. Here the mean of an empty window is what a round arriving now would meet as far
as is known: for a prefill worker the seconds already queued (an idle worker has slack, one that has finished nothing in a whole
window while a long queue waits has not), for a decode worker the cost model's step time of its running batch (0 when idle).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from ampd.errors import WorkerGone
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
    """Place one prefill. Draining prefill workers take none; the bound decode worker serves its sessions to the end.

    `local_reason` keeps the round local whatever the load; `forced` fixes the path (the cheapest prefill worker for "remote").
    The decision's estimates cover every candidate when costs decided, and the chosen one and "local" otherwise.
    Raises WorkerGone when the bound decode worker is not in the view.
    """
    decode = next((w for w in view.decode if w.id == round.decode), None)
    if decode is None:
        raise WorkerGone(f"decode worker {round.decode} of session {round.session} is not live")
    estimate = _Estimator(round, decode, cost)
    prefill = [w for w in view.prefill if not w.draining]

    if local_reason is not None:
        return estimate.local_decision(local_reason)
    if not prefill:
        return estimate.local_decision("only_local")
    if forced == "local":
        return estimate.local_decision("forced")
    if forced == "remote":
        return estimate.remote_decision(min(_random_order(prefill, rng), key=estimate.remote), "forced")

    for worker in _random_order(prefill, rng):
        if _ttft_hat(worker) <= settings.alpha * round.ttft_target_s:
            return estimate.remote_decision(worker, "prefill_slack")
    if _itl_hat(decode, cost) <= settings.beta * round.itl_target_s:
        return estimate.local_decision("decode_slack")
    return _least_cost(estimate, prefill, rng)


def _least_cost(estimate: _Estimator, prefill: Sequence[WorkerView], rng: Random) -> Decision:
    """Line 6: the least of Equations 1 and 2; equal remote candidates are chosen among at random, a tie with local stays local."""
    best = min(_random_order(prefill, rng), key=estimate.remote)
    if estimate.local() <= estimate.remote(best):
        return estimate.local_decision("cost_local")
    return estimate.remote_decision(best, "cost_remote")


def _ttft_hat(worker: WorkerView) -> float:
    return worker.queued_s if worker.ttft_s is None else worker.ttft_s


def _itl_hat(worker: WorkerView, cost: CostModel) -> float:
    if worker.itl_s is not None:
        return worker.itl_s
    if worker.running == 0:
        return 0.0
    return cost.t_dec(worker.running, max(0, worker.kv_total - worker.kv_free - worker.kv_pinned), worker.theta)


def _random_order(workers: Sequence[WorkerView], rng: Random) -> Iterator[WorkerView]:
    """A uniformly random permutation, drawn one by one: the first worker usually has slack."""
    pool = list(workers)
    for left in range(len(pool), 0, -1):
        i = int(rng.random() * left)
        yield pool[i]
        pool[i] = pool[left - 1]


@dataclass(slots=True)
class _Estimator:
    """Equations 1 and 2 for one round. Workers of equal theta share their cost terms, so a decision costs O(workers) additions."""

    round: Round
    decode: WorkerView
    cost: CostModel
    estimates: dict[str, float] = field(default_factory=dict)
    _t_pre: dict[int, float] = field(default_factory=dict)
    _t_kv: dict[int, float] = field(default_factory=dict)

    def local(self) -> float:
        """Equation 1: own prefill plus the prefills queued on the decode worker."""
        total = self.estimates["local"] = self.t_pre(self.decode) + self.decode.queued_s
        return total

    def remote(self, worker: WorkerView) -> float:
        """Equation 2: own prefill, both KV transfers, and the worker's queue."""
        total = self.estimates[f"remote:{worker.id}"] = self.t_pre(worker) + self.t_kv(worker) + worker.queued_s
        return total

    def t_pre(self, worker: WorkerView) -> float:
        theta = worker.theta
        if theta not in self._t_pre:
            self._t_pre[theta] = self.cost.t_pre(self.round.l_hist, self.round.l_incr, theta)
        return self._t_pre[theta]

    def t_kv(self, worker: WorkerView) -> float:
        """History from the decode worker to `worker`, increment back."""
        theta, theta_d = worker.theta, self.decode.theta
        if theta not in self._t_kv:
            history = self.cost.t_kv(self.round.l_hist, theta_d, theta, "history")
            self._t_kv[theta] = history + self.cost.t_kv(self.round.l_incr, theta, theta_d, "increment")
        return self._t_kv[theta]

    def local_decision(self, reason: Reason) -> Decision:
        self.local()
        return Decision("local", self.decode.id, reason, self.t_pre(self.decode), self.estimates)

    def remote_decision(self, worker: WorkerView, reason: Reason) -> Decision:
        self.local()
        self.remote(worker)
        return Decision("remote", worker.id, reason, self.t_pre(worker), self.estimates)
