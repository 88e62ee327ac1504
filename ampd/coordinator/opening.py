"""Steps 1 to 3 of a round: open it, bind its session, measure its history."""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from collections.abc import Callable, Sequence

from ampd.coordinator.binder import Binder, Binding
from ampd.coordinator.custody import Custody
from ampd.coordinator.held import still_held
from ampd.coordinator.keys import SessionKey
from ampd.coordinator.quarantine import Quarantine
from ampd.coordinator.request import Ask
from ampd.coordinator.round import History, Round
from ampd.coordinator.search import SessionSearch
from ampd.errors import NoWorkers, StateError, WorkerGone
from ampd.ledger import DIGEST_SIZE
from ampd.ledger import match as match_ledger
from ampd.messages import Handle
from ampd.policy.types import ClusterView, WorkerView
from ampd.policy.types import Round as Placement
from ampd.state.base import Opened, SessionRow, StateStore

log = logging.getLogger(__name__)


class Opening:
    """Opens rounds."""

    def __init__(
        self,
        store: StateStore,
        quarantine: Quarantine,
        binder: Binder,
        search: SessionSearch,
        block_size: int,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._store, self._quarantine, self._binder, self._search = store, quarantine, binder, search
        self._block_size, self._wall = block_size, wall
        self._ids, self._numbers = uuid.uuid4().hex[:16], itertools.count()

    async def open(self, ask: Ask, key: SessionKey | None, arrived_at: float) -> Round:
        """Open a round: one trip to the store, a second one when the session is bound in it.

        Raises StateError, or NoWorkers when no decode worker can take it: no handle is lost then, it goes back to the session.
        """
        began = time.perf_counter()
        opened = await self._store.open_round(key.id) if key is not None else Opened(None, b"", await self._store.view())
        read_s = time.perf_counter() - began
        if key is not None and _incomplete(opened):
            opened = await self._search.complete(key.id, opened)
        view, row = self._quarantine.healthy(opened.view), opened.session
        number = row.round + 1 if row is not None else 1
        handle = row.handle if row is not None else None
        try:
            if key is None:
                binding, history = (
                    Binding(None, self._binder.choose(view, ask), view),
                    measure(b"", ask.token_ids, 0, self._block_size),
                )
            else:
                binding, history = await self._bind(opened, key, view, ask, number)
        except (NoWorkers, WorkerGone):
            await self._give_back(key, row)
            raise
        bound = binding.worker
        custody = Custody(handle if handle is not None and handle.epoch == bound.epoch else None)
        if custody.history is None:
            custody.disown(handle)
        if binding.row is not None and binding.row is not row:
            custody.disown(binding.row.handle)
        return Round(
            id=f"{self._ids}{next(self._numbers):x}",
            ask=ask,
            key=key,
            arrived_at=arrived_at,
            number=number,
            view=binding.view,
            row=binding.row,
            ledger=opened.ledger,
            bound=bound,
            history=history,
            custody=custody,
            held=still_held(row.held, history.matched, binding.view) if row is not None else {},
            degraded=opened.degraded,
            read_s=read_s,
            rebound=binding.cause,
            rebinding=binding.rebinding,
        )

    async def _bind(self, opened: Opened, key: SessionKey, view: ClusterView, ask: Ask, number: int) -> tuple[Binding, History]:
        binding = await self._binder.bind(key, opened.session, view, ask)
        history = self._measure(opened, ask, binding.worker)
        if self._binder.moves and opened.session is not None and binding.cause is None:
            increment = len(ask.token_ids) - history.l_hist
            placement = Placement(
                key.id, number, binding.worker.id, history.l_hist, increment, ask.ttft_target_s, ask.itl_target_s,
                still_held(opened.session.held, history.matched, view), ask.priority,
            )  # fmt: skip
            binding = await self._binder.move(binding, key, ask, placement)
            if binding.cause is not None:
                history = self._measure(opened, ask, binding.worker)
        return binding, history

    def _measure(self, opened: Opened, ask: Ask, bound: WorkerView) -> History:
        handle = opened.session.handle if opened.session is not None else None
        held = handle.tokens if handle is not None and self._usable(handle, bound) else 0
        return measure(opened.ledger, ask.token_ids, held, self._block_size)

    async def rebind(self, round: Round, cause: str) -> None:
        """Move a round, whose decode worker has just failed, and its session to another one. Raises NoWorkers."""
        round.view = self._quarantine.healthy(round.view)
        if round.key is None or round.row is None:
            round.bound = self._binder.choose(round.view, round.ask)
        else:
            binding = await self._binder.bind(round.key, round.row, round.view, round.ask)
            round.row, round.bound, round.view = binding.row, binding.worker, binding.view
            round.custody.disown(round.row.handle if round.row is not None else None)
        round.rebound = cause
        round.history = measure(round.ledger, round.ask.token_ids, 0, self._block_size)

    async def _give_back(self, key: SessionKey | None, row: SessionRow | None) -> None:
        if key is not None and row is not None and row.handle is not None:
            try:
                await self._store.close_round(key.id, row, None)
            except StateError as e:
                log.warning("history of session %s not given back, it ends by itself: %s", key.id, e)

    def _usable(self, handle: Handle, bound: WorkerView) -> bool:
        return handle.worker == bound.id and handle.epoch == bound.epoch and handle.expires_at > self._wall()


def _incomplete(opened: Opened) -> bool:
    """Whether a worker may know more of the session than the store, which may have lost what it held."""
    return opened.unsure and (opened.session is None or opened.session.handle is None)


def measure(ledger: bytes, token_ids: Sequence[int], held: int, block_size: int) -> History:
    """How much of a prompt is the session's, and how much of that KV is among the `held` tokens of its handle."""
    match = match_ledger(ledger, token_ids, block_size)
    l_hist = min(match.tokens, held // block_size * block_size)
    if l_hist == len(token_ids):
        l_hist -= block_size  # something must be computed to sample from
    return History(match.tokens, max(0, l_hist), rewritten=match.tokens < len(ledger) // DIGEST_SIZE * block_size, match=match)
