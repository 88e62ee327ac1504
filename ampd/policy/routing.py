"""`policy.name: paper`. Adaptive routing: Algorithm 1 of the paper, over Equations 1 and 2.

Side by side with the pseudo-code:

    for i in random_order(prefill workers):                        fitting = [... if _ttft_hat(worker) <= ...]
        if TTFT_hat_i <= alpha * TTFT_thres: remote to i           remote to random_one(fitting)
    if ITL_hat_d <= beta * ITL_thres: local on d                   if _itl_hat(decode, ...) <= ...
    argmin of t_local (Eq. 1) and t_remote_i (Eq. 2)               _Equations.local and .remotes

(The first that fits in a random order is a random one of those that fit.)

The paper does not say what an empty window means. Here the mean of an empty window is what a round arriving now would meet as far
as is known: for a prefill worker the seconds already queued (an idle worker has slack, one that has finished nothing in a whole
window while a long queue waits has not), for a decode worker the cost model's step time of its running batch (0 when idle).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ampd.policy.placing import ByTheta, Case, Estimates, least, named, random_one
from ampd.policy.types import CostModel, Decision, Reason, WorkerView


@dataclass(frozen=True, slots=True)
class Paper:
    """Algorithm 1. Its decisions' estimates cover every candidate when costs decided, and the chosen one and "local" otherwise."""

    alpha: float
    beta: float

    def choose(self, case: Case) -> Decision:
        if not case.prefill:
            return self.local(case, "only_local")
        limit = self.alpha * case.round.ttft_target_s
        fitting = [w for w in case.prefill if (w.queued_s if w.ttft_s is None else w.ttft_s) <= limit]
        if fitting:
            return _Equations(case).remote_decision(random_one(fitting, case.rng), "prefill_slack")
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
        return equations.remote_decision(least(case.prefill, equations.remotes(), case.rng), reason)


def _least_cost(equations: _Equations, case: Case) -> Decision:
    """Line 6: the least of Equations 1 and 2; equal remote candidates are chosen among at random, a tie with local stays local."""
    seconds = equations.remotes()
    if equations.local() <= min(seconds):
        return equations.local_decision("cost_local", seconds)
    return equations.remote_decision(least(case.prefill, seconds, case.rng), "cost_remote", seconds)


def _itl_hat(worker: WorkerView, cost: CostModel) -> float:
    if worker.itl_s is not None:
        return worker.itl_s
    return worker.t_dec_factor * cost.t_dec(worker.running, worker.context, worker.theta) if worker.running > 0 else 0.0


class _Equations:
    """Equations 1 and 2 for one round. Workers of equal theta share their cost terms, so a decision costs O(workers) additions.

    T_pre and T_kv are multiplied by the factors that the worker which computes, or reads, has measured.
    """

    __slots__ = ("_case", "_own")

    def __init__(self, case: Case) -> None:
        self._case = case
        self._own = ByTheta(self._own_s)

    def local(self) -> float:
        """Equation 1: own prefill plus the prefills queued on the decode worker."""
        return self._t_pre(self._case.decode) + self._case.decode.queued_s

    def remotes(self) -> list[float]:
        """Equation 2 for each prefill worker: own prefill, both KV transfers, and the worker's queue."""
        own, seconds = self._own, []
        for w in self._case.prefill:
            prefill, history, increment = own[w.theta]
            seconds.append(w.t_pre_factor * prefill + w.t_kv_factor * history + increment + w.queued_s)
        return seconds

    def _remote(self, worker: WorkerView) -> float:
        prefill, history, increment = self._own[worker.theta]
        return worker.t_pre_factor * prefill + worker.t_kv_factor * history + increment + worker.queued_s

    def _t_pre(self, worker: WorkerView) -> float:
        return worker.t_pre_factor * self._case.cost.t_pre(self._case.round.l_hist, self._case.round.l_incr, worker.theta)

    def _own_s(self, theta: int) -> tuple[float, float, float]:
        """Equation 2 without the queue and the worker's factors: prefill, history from the decode worker, increment back."""
        round, cost, decode = self._case.round, self._case.cost, self._case.decode
        prefill = cost.t_pre(round.l_hist, round.l_incr, theta)
        history = cost.t_kv(round.l_hist, decode.theta, theta, "history")
        return prefill, history, decode.t_kv_factor * cost.t_kv(round.l_incr, theta, decode.theta, "increment")

    def local_decision(self, reason: Reason, remotes: Sequence[float] = ()) -> Decision:
        decode = self._case.decode
        return Decision("local", decode.id, reason, self._t_pre(decode), self._estimates(self._case.prefill, remotes))

    def remote_decision(self, worker: WorkerView, reason: Reason, remotes: Sequence[float] = ()) -> Decision:
        shown, seconds = (self._case.prefill, remotes) if remotes else ([worker], [self._remote(worker)])
        estimates = self._estimates(shown, seconds)
        return Decision("remote", worker.id, reason, self._t_pre(worker), estimates)

    def _estimates(self, workers: Sequence[WorkerView], seconds: Sequence[float]) -> Estimates:
        return Estimates(lambda: {"local": self.local(), **(named(workers, seconds) if seconds else {})})
