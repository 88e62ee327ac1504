"""What all routing policies share: who is there, what overrides the choice, and the two ways to write a decision down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

import msgspec

from ampd.errors import WorkerGone
from ampd.policy.types import ClusterView, CostModel, Decision, Path, Reason, Round, WorkerView


class Case(msgspec.Struct, frozen=True):
    """One prefill to place. `decode` is the bound worker; `prefill` the prefill workers that take work and can hold the prompt."""

    round: Round
    decode: WorkerView
    prefill: Sequence[WorkerView]
    view: ClusterView
    cost: CostModel
    rng: Random


class Chooser(Protocol):
    """One policy's own rules."""

    def choose(self, case: Case) -> Decision:
        """The placement, when nothing overrides the policy. `case.prefill` may be empty."""

    def local(self, case: Case, reason: Reason) -> Decision:
        """The round on its bound decode worker."""

    def remote(self, case: Case, reason: Reason) -> Decision | None:
        """The round on the best worker other than the bound one; None when there is none."""


class RoutingPolicy(Protocol):
    """A policy as the Coordinator and the simulator call it."""

    def route(
        self,
        round: Round,
        view: ClusterView,
        cost: CostModel,
        rng: Random,
        forced: Path | None = None,
        local_reason: Reason | None = None,
    ) -> Decision:
        """Place one prefill.

        `local_reason` keeps the round local whatever the load. `forced` fixes the path: the policy's best worker for "remote", and
        local with reason "only_local" when there is none. Draining workers take no prefill of others, nor do those whose whole KV
        pool is smaller than the prompt; the bound decode worker serves its sessions to the end. Raises WorkerGone when the bound
        decode worker is not in the view, and ProfileError when the cost model does not know a worker's theta.
        """


@dataclass(frozen=True, slots=True)
class Router:
    """A RoutingPolicy: the overrides that hold for every policy, then the policy's own choice."""

    chooser: Chooser

    def route(
        self,
        round: Round,
        view: ClusterView,
        cost: CostModel,
        rng: Random,
        forced: Path | None = None,
        local_reason: Reason | None = None,
    ) -> Decision:
        case = Case(round, bound_worker(round, view), able(view.prefill, round.l_hist + round.l_incr), view, cost, rng)
        if local_reason is not None:
            return self.chooser.local(case, local_reason)
        if forced == "local":
            return self.chooser.local(case, "forced")
        if forced is None:
            return self.chooser.choose(case)
        remote = self.chooser.remote(case, "forced")
        return remote if remote is not None else self.chooser.local(case, "only_local")


def bound_worker(round: Round, view: ClusterView) -> WorkerView:
    """The decode worker that the round's session is bound to. Raises WorkerGone when it is not live."""
    wanted = round.decode
    for worker in view.decode:
        if worker.id == wanted:
            return worker
    raise WorkerGone(f"decode worker {round.decode} of session {round.session} is not live")


def able(workers: Sequence[WorkerView], tokens: int) -> list[WorkerView]:
    """Those that take new work and can hold `tokens` tokens. A worker that does not say how large its KV pool is can."""
    return [w for w in workers if not w.draining and not 0 < w.kv_total < tokens]
