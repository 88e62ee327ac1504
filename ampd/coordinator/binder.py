"""Step 2 of a round: the decode worker that its session is bound to, and the moves of sessions between workers."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec

from ampd.config import Policy
from ampd.coordinator.keys import SessionKey
from ampd.coordinator.request import Ask
from ampd.errors import StateError, WorkerGone
from ampd.policy.binding import Rebinding, choose_decode, rebind
from ampd.policy.types import ClusterView, CostModel, Round, WorkerView
from ampd.state.base import SessionRow, StateStore

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Binding:
    """The binding that holds: its row (None: no session, or none that the store knows), its worker, and a view that shows it.

    `cause` says why it changed, if it did; `rebinding` what a change to a cheaper worker costs and saves.
    """

    row: SessionRow | None
    worker: WorkerView
    view: ClusterView
    cause: str | None = None
    rebinding: Rebinding | None = None


class Binder:
    """Binds sessions to decode workers, by the graph's rules."""

    def __init__(self, store: StateStore, policy: Policy, cost: CostModel) -> None:
        self._store, self._policy, self._cost = store, policy, cost

    def choose(self, view: ClusterView, ask: Ask) -> WorkerView:
        """The worker for a new session. Raises NoWorkers."""
        return choose_decode(view, ask.room, rule=self._policy.binding, cost=self._cost)

    async def bind(self, key: SessionKey, row: SessionRow | None, view: ClusterView, ask: Ask) -> Binding:
        """The session's binding, made now if there is none or it cannot stay. Raises NoWorkers, WorkerGone."""
        cause = None
        if row is not None:
            bound = view.find(row.worker)
            live = bound is not None and bound.epoch == row.epoch
            if live and bound is not None and not _should_leave(bound, view):
                return Binding(row, bound, view)
            cause = "draining" if live else "worker_gone"
        return await self._write(key, row, view, ask, self.choose(view, ask), cause)

    async def move(self, binding: Binding, key: SessionKey, ask: Ask, placement: Round) -> Binding:
        """The binding after `policy.rebind` has been asked whether another worker serves the session cheaper."""
        found = rebind(placement, binding.view, self._cost, rule=self._policy.rebind)
        if found is None:
            return binding
        moved = await self._write(key, binding.row, binding.view, ask, found.worker, "cheaper")
        if moved.worker.id != found.worker.id:  # another Coordinator moved it first, by a reckoning of its own
            return moved
        log.info(
            "session %s leaves decode worker %d for %d: cost %.4f s, gain %.4f s",
            key.id, binding.worker.id, moved.worker.id, found.cost_s, found.gain_s,
        )  # fmt: skip
        return Binding(moved.row, moved.worker, moved.view, moved.cause, found)

    @property
    def moves(self) -> bool:
        """Whether sessions ever leave a live worker for a cheaper one."""
        return self._policy.rebind != "never"

    async def _write(
        self, key: SessionKey, row: SessionRow | None, view: ClusterView, ask: Ask, chosen: WorkerView, cause: str | None
    ) -> Binding:
        try:
            held = await self._store.bind(key.id, chosen.id, chosen.epoch, ask.room, replace=row.epoch if row is not None else None)
        except StateError as e:
            log.warning("session %s could not be bound, its round is served without: %s", key.id, e)
            return Binding(None, chosen, view, cause)
        if held.worker != chosen.id:  # another Coordinator bound it first
            chosen, view = await self._found(held, view)
        return Binding(msgspec.structs.replace(held, derived=key.derived), chosen, view, cause)

    async def _found(self, row: SessionRow, view: ClusterView) -> tuple[WorkerView, ClusterView]:
        """The worker of a binding that another Coordinator made, perhaps to one that this view does not show yet."""
        if (found := view.find(row.worker)) is None:
            view = await self._store.view()
            found = view.find(row.worker)
        if found is None:
            raise WorkerGone(f"decode worker {row.worker}, to which the session has just been bound, is not live")
        return found, view


def _should_leave(bound: WorkerView, view: ClusterView) -> bool:
    return bound.draining and any(not worker.draining for worker in view.decode)
