"""What all routing policies share: who is there, what overrides the choice, and the two ways to write a decision down."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from random import Random
from typing import Protocol, TypeVar

from ampd.errors import WorkerGone
from ampd.policy.types import ClusterView, CostModel, Decision, Path, Reason, Round, WorkerView

T = TypeVar("T")


class Case:
    """One prefill to place; `decode` is the bound worker, `tokens` the length of the prompt."""

    __slots__ = ("_prefill", "cost", "decode", "rng", "round", "tokens", "view")

    def __init__(self, round: Round, view: ClusterView, cost: CostModel, rng: Random) -> None:
        self.round, self.view, self.cost, self.rng = round, view, cost, rng
        self.decode = bound_worker(round, view)
        self.tokens = round.l_hist + round.l_incr
        self._prefill: list[WorkerView] | None = None

    @property
    def prefill(self) -> list[WorkerView]:
        """The prefill workers that take work and can hold the prompt. One that does not say how large its KV pool is can."""
        if self._prefill is None:
            tokens = self.tokens
            self._prefill = [w for w in self.view.prefill if not w.draining and not 0 < w.kv_total < tokens]
        return self._prefill


class Chooser(Protocol):
    """One policy's own rules."""

    def choose(self, case: Case) -> Decision:
        """The placement, when nothing overrides the policy. `case.prefill` may be empty."""

    def local(self, case: Case, reason: Reason) -> Decision:
        """The round on its bound decode worker."""

    def remote(self, case: Case, reason: Reason) -> Decision | None:
        """The round on the best worker other than the bound one; None when there is none."""


@dataclass(frozen=True, slots=True)
class Router:
    """A policy as the Coordinator and the simulator call it: the overrides that hold for every policy, then its own choice."""

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
        """Place one prefill.

        `local_reason` keeps the round local whatever the load. `forced` fixes the path: the policy's best worker for "remote", and
        local with reason "only_local" when there is none. Draining workers take no prefill of others, nor do those whose whole KV
        pool is smaller than the prompt; the bound decode worker serves its sessions to the end. Raises WorkerGone when the bound
        decode worker is not in the view, and ProfileError when the cost model does not know a worker's theta.
        """
        case = Case(round, view, cost, rng)
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


class Estimates(Mapping[str, float]):
    """Every candidate's estimate, computed when first read: a decision is made far more often than it is read."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], dict[str, float]]) -> None:
        self._make = make
        self._made: dict[str, float] | None = None

    def _all(self) -> dict[str, float]:
        if self._made is None:
            self._made = self._make()
        return self._made

    def __getitem__(self, key: str) -> float:
        return self._all()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())


def named(workers: Sequence[WorkerView], seconds: Sequence[float]) -> dict[str, float]:
    """Estimates under their keys in a decision; infinite ones are of workers that are no candidates."""
    return {f"remote:{w.id}": s for w, s in zip(workers, seconds, strict=True) if s < inf}


class ByTheta(dict[int, T]):
    """A term that only depends on theta, made when first asked for."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[int], T]) -> None:
        self._make = make

    def __missing__(self, theta: int) -> T:
        term = self[theta] = self._make(theta)
        return term


def random_one(workers: Sequence[WorkerView], rng: Random) -> WorkerView:
    """A worker drawn uniformly."""
    return workers[int(rng.random() * len(workers))]


def least(workers: Sequence[WorkerView], seconds: Sequence[float], rng: Random) -> WorkerView:
    """A random one of those with the least seconds."""
    smallest = min(seconds)
    return random_one([w for w, s in zip(workers, seconds, strict=True) if s == smallest], rng)
