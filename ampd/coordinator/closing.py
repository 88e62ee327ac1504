"""Step 7 of a round: store what the session may use next, and see to every handle that nobody will use."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from dataclasses import replace
from typing import Any

import msgspec

from ampd.coordinator.held import after_prefill
from ampd.coordinator.round import Phase, Round
from ampd.coordinator.workers import Workers
from ampd.errors import StateError, WorkerError, WorkerGone
from ampd.ledger import build, chain_at, grow
from ampd.messages import Handle, KvRequest
from ampd.state.base import SessionRow, StateStore

log = logging.getLogger(__name__)


class Closing:
    """Ends rounds. Releases run in the background: no answer waits for them."""

    def __init__(self, store: StateStore, workers: Workers, block_size: int, grace_s: float) -> None:
        self._store, self._workers, self._block_size, self._grace_s = store, workers, block_size, grace_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: dict[str, asyncio.Task[None]] = {}  # by session

    async def served(self, round: Round, handle: Handle | None) -> None:
        """The round ended well; `handle` is the session's new one, if its decode worker kept the KV. Returns once stored."""
        await self._served(round, handle)

    async def served_soon(self, round: Round, handle: Handle | None) -> None:
        """As `served`, but returns once the store has been told, rather than when it has answered: so an answer need not wait.

        The session's next round waits for it if it comes here (`ended`). At another Coordinator it is asked for later than this is
        written. Should its opening overtake it even so (they travel on different connections), that round misses its history and
        computes it; nothing is lost, since the store tells openings apart and hands back what nobody uses.
        """
        task = self.background(self._served(round, handle))
        if round.key is not None:
            session = round.key.id
            self._ending[session] = task
            task.add_done_callback(lambda done: self._ending.pop(session) if self._ending.get(session) is done else None)
        await asyncio.sleep(0)  # the task runs up to its first wait, that for the store's reply

    async def ended(self, session: str) -> None:
        """Wait until the store has answered to the end of the session's last round."""
        if (task := self._ending.get(session)) is not None:
            await asyncio.wait((task,))

    def _served(self, round: Round, handle: Handle | None) -> Coroutine[Any, Any, None]:
        round.phase = Phase.CLOSED
        round.custody.served(kept=handle is not None)
        put_back = self._settle(round)
        ledger = self._ledger(round, handle) if handle is not None else None
        if handle is not None and ledger is None:
            self.release([handle])
            handle = None
        return self._store_end(round, put_back if handle is None else handle, ledger, round.number)

    async def unserved(self, round: Round) -> None:
        """The round was cancelled or failed, in whatever phase. Safe to call for one that is closed."""
        if round.phase is Phase.CLOSED:
            return
        round.phase = Phase.CLOSED
        self._abandon(round)
        put_back = self._settle(round)
        await self.leave_queue(round)
        if put_back is not None or round.ask.final:
            await self._store_end(round, put_back, None, round.number - 1)

    def give_up(self, round: Round) -> None:
        """An attempt failed and another follows, which uses none of its handles."""
        self._abandon(round)
        put_back = self._settle(round)
        self.release([put_back] if put_back is not None else [])
        round.prefilled = None
        round.history = replace(round.history, l_hist=0)

    async def leave_queue(self, round: Round) -> None:
        """Take a task that will not be served out of its queue."""
        worker, round.queued_on = round.queued_on, None
        if worker is not None:
            try:
                await self._store.dequeue(worker, round.leg)
            except StateError as e:
                log.warning("task %s stays in the queue of %d until its worker reports: %s", round.leg, worker, e)

    def release(self, handles: Iterable[Handle]) -> None:
        """Tell the holders that nobody will read these handles."""
        for handle in handles:
            self.background(self._tell(handle.worker, KvRequest(op="release", handle=handle)))

    def background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something that no answer waits for; `drain` does."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self, timeout_s: float) -> None:
        """Wait for what runs in the background, except releases that wait for a grace."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    async def _store_end(self, round: Round, handle: Handle | None, ledger: bytes | None, number: int) -> None:
        if round.key is None or round.row is None:
            self.release([handle] if handle is not None else [])
            return
        tokens = handle.tokens if handle is not None else round.row.tokens
        held = round.row.held
        if round.prefilled is not None:
            held = after_prefill(held, round.prefilled, len(round.ask.token_ids))
        row = msgspec.structs.replace(
            round.row, round=max(0, number), tokens=tokens, handle=handle, derived=round.key.derived, held=held
        )
        try:
            unused = await self._end(round, row, ledger)
        except StateError as e:
            log.warning("end of a round of session %s not stored, its next one starts afresh: %s", round.key.id, e)
            unused = [handle] if handle is not None else []
        self.release(unused)

    async def _end(self, round: Round, row: SessionRow, ledger: bytes | None) -> list[Handle]:
        assert round.key is not None
        if not round.ask.final:
            unused = await self._store.close_round(round.key.id, row, ledger)
            return [unused] if unused is not None else []
        last = await self._store.end_session(round.key.id)
        return [h for h in (row.handle, last.handle if last is not None else None) if h is not None]

    def _ledger(self, round: Round, handle: Handle) -> bytes | None:
        """The ledger of the tokens that a handle vouches for; None when it vouches for others than this round's."""
        tokens = [*round.ask.token_ids, *round.generated][: handle.tokens]
        match = round.history.match
        if match is None or match.tokens > len(tokens):
            ledger = build(tokens, self._block_size)
        else:
            ledger = grow(round.ledger, match, tokens[match.tokens :], self._block_size)
        vouched = len(tokens) == handle.tokens and chain_at(ledger, len(tokens), self._block_size) == handle.chain
        if not vouched or handle.session != round.session:
            log.error("worker %d returned a handle to other tokens than those of round %s", handle.worker, round.id)
            return None
        return ledger

    def _settle(self, round: Round) -> Handle | None:
        """Release what the round's custody owes. Returns the history if it still stands for the session."""
        owed = round.custody.settle()
        self.release(owed.release)
        self._release_later(owed.release_later)
        return owed.put_back

    def _abandon(self, round: Round) -> None:
        """The worker of a leg that ended early may leave a pin whose handle nobody has."""
        worker, round.awaiting = round.awaiting, None
        if worker is not None:
            self.background(self._tell(worker, KvRequest(op="abandon", id=round.leg)))

    async def _tell(self, worker: int, request: KvRequest) -> None:
        try:
            await self._workers.kv(worker, request)
        except WorkerGone:
            log.debug("worker %d and its pins are gone", worker)
        except WorkerError as e:
            log.warning("%s did not reach worker %d, the pin ends by its expiry: %s", request.op, worker, e)

    def _release_later(self, handles: Iterable[Handle]) -> None:
        loop = asyncio.get_running_loop()
        for handle in handles:
            loop.call_later(self._grace_s, self.release, [handle])
