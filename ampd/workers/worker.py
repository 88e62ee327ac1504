"""What every worker does whatever its role: its identity, pins, rounds under way, and room for more. Knows nothing of Dynamo."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from ampd.errors import KvFenceError, RoundCancelled, WorkerError
from ampd.messages import DecodeRequest, Handle, KvReply, KvRequest, PrefillRequest, Role
from ampd.policy.types import Direction, PrefillTask
from ampd.state.base import QueueEntry, WorkerRow
from ampd.workers.engines.base import Engine, EngineOutput, KvFacts
from ampd.workers.judge import JobWatch, Judge
from ampd.workers.pins import PinTable
from ampd.workers.prefill_queue import Mirror, Order, PrefillQueue, Turn

log = logging.getLogger(__name__)

# Pins are given up from `_HIGH` of the KV pool in use, down to `_LOW`.
_HIGH, _LOW = 0.92, 0.85
_ABORT_EVERY_S, _ABORT_TRIES = 0.1, 100


class Telemetry(Mirror, Protocol):
    """Where a worker reports; see Reporter."""

    def touch(self) -> None:
        """The row has changed."""

    def ttft(self, worker: int, seconds: float) -> None:
        """One TTFT, for the worker that prefilled the round."""

    def itl(self, worker: int, seconds: float, count: int) -> None:
        """`count` inter-token gaps that sum to `seconds`."""


class Observer(Protocol):
    """Who counts what a worker sees, for metrics."""

    def fenced(self, cause: str) -> None:
        """A handle was refused."""

    def read(self, direction: Direction, facts: KvFacts, bytes_per_token: int) -> None:
        """A job's KV was read from another worker, if `facts` say so."""


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Who this worker is. `epoch` is new with every start of the process."""

    id: int
    role: Role
    epoch: str
    theta: int


@dataclass(slots=True)
class Counters:
    """Totals since the start, for metrics and tests."""

    rounds: int = 0
    recomputes: dict[str, int] = field(default_factory=dict)
    shed_pins: int = 0

    def recompute(self, cause: str) -> None:
        """KV that was promised is not used."""
        self.recomputes[cause] = self.recomputes.get(cause, 0) + 1


class Worker:
    """One engine, its prefill queue and its pins.

    `grace_s` is how long a claimed pin outlives its last known use, `pin_ttl_s` how long an unused one lives at most (the engine's
    own expiry is the backstop behind it). An engine that computes several prefills in a step does so up to `chunk` tokens; 0: it
    computes one at a time.
    """

    def __init__(
        self,
        identity: WorkerIdentity,
        engine: Engine,
        telemetry: Telemetry,
        order: Order,
        grace_s: float,
        pin_ttl_s: float,
        observer: Observer | None = None,
        judge: Judge | None = None,
        chunk: int = 0,
    ) -> None:
        self.identity, self.engine, self.telemetry, self._grace_s = identity, engine, telemetry, grace_s
        self._pin_ttl_s = pin_ttl_s
        self._observer = observer
        self.judge = Judge() if judge is None else judge
        self.block_size = engine.info.block_size
        self.pins = PinTable(identity.id, identity.epoch, self.block_size, time.time)
        # A prefill worker computes one task while one more reads its history.
        slots = 2 if identity.role == "prefill" else 1
        self.queue = PrefillQueue(slots, order, telemetry, time.monotonic, room=chunk)
        self.counters = Counters()
        self.draining = False
        self._cancelled: dict[str, bool] = {}  # rounds under way: whether their client is gone
        self._requests: dict[str, PrefillRequest | DecodeRequest] = {}  # that wait for their turn
        self._idle = asyncio.Event()
        self._idle.set()

    def row(self) -> WorkerRow:
        """What the state store should know of this worker now."""
        load, info, me = self.engine.load(), self.engine.info, self.identity
        return WorkerRow(
            id=me.id,
            role=me.role,
            epoch=me.epoch,
            theta=me.theta,
            running=load.running,
            running_s=self.queue.running_s(),
            kv_total=info.kv_total,
            kv_free=max(0, info.kv_total - load.kv_used),
            kv_pinned=self.pins.tokens,
            draining=self.draining,
            context=load.context,
            link_s=load.link_s,
            kv_written=load.kv_written,
            t_pre_factor=self.judge.factor("t_pre"),
            t_dec_factor=self.judge.factor("t_dec"),
            t_mixed_factor=self.judge.factor("t_mixed"),
            t_kv_factor=self.judge.factor("t_kv"),
        )

    # ---- rounds under way

    @contextmanager
    def round(self, id: str) -> Iterator[None]:
        """Count a round while it runs, so that `cancel` and `drain` know it."""
        if id in self._cancelled:
            raise WorkerError(f"round {id} is already running here")
        self._cancelled[id] = False
        self._idle.clear()
        self.counters.rounds += 1
        try:
            yield
        finally:
            del self._cancelled[id]
            if not self._cancelled:
                self._idle.set()

    async def cancel(self, id: str) -> None:
        """The client of a round is gone: end the round in whatever phase it is. Unknown ids are ignored."""
        if id not in self._cancelled:
            return
        self._cancelled[id] = True
        if self.queue.cancel(id):
            return
        # The engine may not know the job yet: a round between its turn and its submission needs a second call.
        for _ in range(_ABORT_TRIES):
            await self.engine.abort(id)
            await asyncio.sleep(_ABORT_EVERY_S)
            if id not in self._cancelled:
                return
        log.error("round %s did not end within %.0f s of its cancellation", id, _ABORT_TRIES * _ABORT_EVERY_S)

    async def take_turn(self, request: PrefillRequest | DecodeRequest) -> Turn:
        """Wait for the turn of a request's prefill, which holds until `queue.leave`. Raises RoundCancelled."""
        self._requests[request.id] = request
        try:
            turn = await self.queue.take(prefill_task(request), len(request.token_ids) - request.l_hist)
        finally:
            del self._requests[request.id]
        self.telemetry.touch()
        return turn

    def waiting(self) -> list[QueueEntry]:
        """The prefills whose turn has not come, as the state store's mirror of the queue should have them."""
        return [_entry(self._requests[task.id], task) for task in self.queue.waiting]

    def check_wanted(self, id: str) -> None:
        """Raises RoundCancelled if the client has gone away."""
        if self._cancelled[id]:
            raise RoundCancelled(id)

    async def drain(self, timeout_s: float) -> None:
        """Take no more work and wait for what runs."""
        self.draining = True
        self.telemetry.touch()
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%d rounds still run after %.0f s of draining", len(self._cancelled), timeout_s)

    # ---- pins

    async def issue(self, id: str, session: str, output: EngineOutput, ledger: bytes) -> Handle:
        """The handle to the pin that round `id`'s last output carries. Raises RoundCancelled if nobody will receive it."""
        if output.ref is None or output.params is None:
            raise WorkerError("the engine returned no pin")
        if self._cancelled[id]:
            await self.engine.release([output.ref])
            raise RoundCancelled(id)
        expires_at = min(output.expires_at, time.time() + self._pin_ttl_s)
        return self.pins.issue(id, session, output.ref, output.pinned_tokens, ledger, expires_at, output.params)

    def fenced(self, cause: str) -> None:
        """A handle was refused."""
        if self._observer is not None:
            self._observer.fenced(cause)

    def observe(self, direction: Direction, output: EngineOutput, watch: JobWatch) -> None:
        """A job has ended that was to read `direction`."""
        facts = output.kv or KvFacts()
        if self._observer is not None:
            self._observer.read(direction, facts, self.engine.info.kv_bytes_per_token)
        watch.over(facts)

    async def release(self, handle: Handle | None, session: str | None = None) -> None:
        """Drop a pin that nobody reads; with `session`, only one of that session's."""
        if handle is None or session not in (None, handle.session):
            return
        if self.pins.drop(handle):
            await self.engine.release([handle.ref])

    async def kv(self, request: KvRequest) -> KvReply:
        """Answer a peer; see KvRequest."""
        if request.op == "finish":
            await self.engine.finish(request.id)
            return KvReply(ok=True)
        if request.op == "find":
            pin = self.pins.of_session(request.session)
            return KvReply(ok=False, cause="unknown") if pin is None else KvReply(ok=True, handle=pin.handle, ledger=pin.ledger)
        handle = self.pins.of_round(request.id) if request.op == "abandon" else request.handle
        if request.op == "claim":
            try:
                self.pins.claim(handle, request.tokens, request.chain)
            except KvFenceError as e:
                self.fenced(e.cause)
                return KvReply(ok=False, cause=e.cause)
        elif handle is not None and not self.pins.is_claimed(handle):  # else the grace ends it: a transfer may be under way
            await self.release(handle)
        return KvReply(ok=True)

    async def make_room(self, tokens: int, session: str | None = None) -> None:
        """Give up the oldest pins when `tokens` more would not fit: a history can be recomputed, a round has to run."""
        load = self.engine.load()
        await self._shed(tokens - (self.engine.info.kv_total - load.kv_used), session)

    async def _shed(self, tokens: int, session: str | None = None) -> None:
        if tokens > 0 and (refs := self.pins.shed(tokens, session)):
            self.counters.shed_pins += len(refs)
            await self.engine.release(refs)

    async def maintain(self, interval_s: float = 0.1) -> None:
        """End pins by expiry, grace and memory pressure, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            if refs := self.pins.sweep(self._grace_s):
                await self.engine.release(refs)
            total, used = self.engine.info.kv_total, self.engine.load().kv_used
            if used > _HIGH * total:
                await self._shed(used - int(_LOW * total))


def prefill_task(request: PrefillRequest | DecodeRequest) -> PrefillTask:
    """A request as the queue orders it, by its arrival at the Coordinator."""
    arrived_at = time.monotonic() - request.elapsed_s
    return PrefillTask(request.id, arrived_at, request.estimate_s, request.ttft_target_s, priority=request.priority)


def _entry(request: PrefillRequest | DecodeRequest, task: PrefillTask) -> QueueEntry:
    return QueueEntry(
        id=task.id,
        session=request.session,
        round=request.round,
        l_hist=request.l_hist,
        l_incr=len(request.token_ids) - request.l_hist,
        cost_s=task.cost_s,
        ttft_target_s=task.ttft_target_s,
        arrived_at=time.time() - (time.monotonic() - task.arrived_at),
        postponed=task.postponed,
        priority=task.priority,
    )
