"""The round state machine: open, bind, measure, route, prefill and decode, stream, close. Knows nothing of Dynamo."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from random import Random
from typing import Any

from ampd.config import Graph
from ampd.coordinator.binder import Binder
from ampd.coordinator.closing import Closing
from ampd.coordinator.counters import Counters
from ampd.coordinator.explain import decided, log_decision, log_end, measured, usage
from ampd.coordinator.keys import SessionKeys
from ampd.coordinator.legs import Legs
from ampd.coordinator.opening import Opening
from ampd.coordinator.quarantine import Quarantine
from ampd.coordinator.request import read_request
from ampd.coordinator.round import Phase, Round
from ampd.coordinator.search import SessionSearch
from ampd.coordinator.workers import Caller, Workers
from ampd.cost_model import extrapolates
from ampd.errors import RequestError, RoundCancelled, WorkerError, WorkerGone
from ampd.messages import DecodeChunk
from ampd.policy.registry import make_policy
from ampd.policy.types import CostModel, Decision, Path, Reason
from ampd.policy.types import Round as Placement
from ampd.state.base import QueueEntry, StateStore

log = logging.getLogger(__name__)

# Prefills estimated shorter than this are not shown in the queues: reading shared state takes about as long.
_BRIEF_S = 0.001


class Coordinator:
    """Serves rounds over a state store, workers and a cost model."""

    def __init__(
        self,
        graph: Graph,
        store: StateStore,
        workers: Workers,
        cost: CostModel,
        rng: Random | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._graph, self._store, self._cost, self._clock, self._wall = graph, store, cost, clock, wall
        self._rng = rng or Random()
        self._policy = make_policy(graph.policy, prefill_chunk=_prefill_chunk(graph))
        self._keys = SessionKeys(graph.name, graph.sessions.key_sources, graph.sessions.derive)
        self._quarantine = Quarantine(graph.state.stale_after_s, clock)
        binder = Binder(store, graph.policy, cost)
        search = SessionSearch(store, workers)
        self._opening = Opening(store, self._quarantine, binder, search, graph.model.block_size, wall)
        self._closing = Closing(store, workers, graph.model.block_size, graph.transport.read_grace_s)
        self._legs = Legs(workers, self._closing, graph.coordinator.round_timeout_s, clock)
        self._running = 0
        self.counters = Counters(clock, lambda: self._running)
        self._idle = asyncio.Event()
        self._idle.set()

    async def serve(self, raw: dict[str, Any], caller: Caller) -> AsyncGenerator[dict[str, Any]]:
        """Serve one preprocessed request; yields engine outputs in Dynamo's form, the last one with usage.

        Raises RequestError (bad request), NoWorkers, WorkerError (after what could be retried), TimeoutError (a worker made no
        progress), RoundCancelled (the caller went away). Whatever happens, no handle and no queued task is left behind.
        """
        arrived_at = self._clock()
        ask = read_request(raw, self._graph.model.max_model_len, self._graph.targets, caller.metadata())
        key = self._keys.find(raw, ask.token_ids, ask.cache_salt)
        if key is not None:
            await self._closing.ended(key.id)
        round = await self._opening.open(ask, key, arrived_at)
        self.counters.opened(round)
        outcome, error = "abandoned", ""
        self._running += 1
        self._idle.clear()
        try:
            # Closed here rather than by the garbage collector: the leg must be stopped before the round is settled.
            async with aclosing(self._attempts(round, caller)) as outputs:
                async for output in outputs:
                    yield output
            outcome = "served"
        except RoundCancelled:
            outcome = "cancelled"
            raise
        except Exception as e:
            outcome, error = "refused" if isinstance(e, RequestError) else "failed", f"{type(e).__name__}: {e}"
            raise
        finally:
            # In tasks, both: a generator that is thrown away may not await.
            if round.rest is None:
                self._over(round, outcome, error)
            else:
                self._closing.background(self._wind_up(round, round.rest))

    async def _wind_up(self, round: Round, rest: Coroutine[Any, Any, None]) -> None:
        try:
            await rest
        finally:
            self._over(round, "abandoned", "")

    def _over(self, round: Round, outcome: str, error: str) -> None:
        self._running -= 1
        if self._running == 0:
            self._idle.set()
        log_end(round, outcome, error)
        self.counters.ended(round, outcome)
        if round.phase is not Phase.CLOSED:
            self._closing.background(self._closing.unserved(round))

    async def drain(self, timeout_s: float) -> None:
        """Wait for the running rounds, then for what they left to do."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            log.warning("%d rounds still run after %.0f s of draining", self._running, timeout_s)
        await self._closing.drain(1.0)

    async def _attempts(self, round: Round, caller: Caller) -> AsyncGenerator[dict[str, Any]]:
        while True:
            try:
                decision = await self._place(round, caller)
                async with aclosing(self._legs.decode(round, decision, caller)) as chunks:
                    async for chunk in chunks:
                        yield await self._output(round, chunk)
                return
            except WorkerGone as e:
                await self._replay(round, e)

    async def _place(self, round: Round, caller: Caller) -> Decision:
        """Decide, and run the prefill if it is remote. A failed prefill worker turns the round local, once."""
        decision = await self._decide(round)
        if decision.path == "local":
            return decision
        try:
            await self._legs.prefill(round, decision, caller)
            return decision
        except WorkerError as e:
            log.warning("prefill worker %d failed round %s, which goes on locally: %s", decision.worker, round.id, e)
            round.prefill_failed = str(e)
            if isinstance(e, WorkerGone):
                self._quarantine.add(decision.worker)
        await self._start_over(round)
        return await self._decide(round)

    async def _decide(self, round: Round) -> Decision:
        ask = round.ask
        placement = Placement(
            round.session,
            round.number,
            round.bound.id,
            round.history.l_hist,
            round.l_incr,
            ask.ttft_target_s,
            ask.itl_target_s,
            round.held,
            ask.priority,
        )
        began = self._clock()
        decision = self._policy.route(
            placement, round.view, self._cost, self._rng, self._forced(round.number), self._local_reason(round)
        )
        took_s = self._clock() - began
        round.decision = decision
        round.extrapolated = self._extrapolates(round, decision)
        self._enqueue(round, decision)
        asyncio.get_running_loop().call_soon(self._note, round, took_s)  # the round does not wait for its log line
        return decision

    def _note(self, round: Round, took_s: float) -> None:
        log_decision(round)
        self.counters.decided(round, took_s)

    def _extrapolates(self, round: Round, decision: Decision) -> bool:
        """Whether the profile has measured nothing like what the chosen worker is to compute."""
        worker, reused, prompt = round.bound, round.history.l_hist, len(round.ask.token_ids)
        if decision.path == "remote":
            worker = round.view.find(decision.worker) or worker
            reused = min(max(reused, round.held.get(decision.worker, 0)), prompt - 1)
        return extrapolates(self._cost, reused, prompt - reused, worker.theta)

    def _forced(self, number: int) -> Path | None:
        force = self._graph.policy.force
        return force[(number - 1) % len(force)] if force else None

    def _local_reason(self, round: Round) -> Reason | None:
        if round.ask.local_only:
            return "engine_needs_local"
        return "prefill_failed" if round.prefill_failed is not None else None

    def _enqueue(self, round: Round, decision: Decision) -> None:
        """Show the task in its worker's queue. Nothing waits for it: the task itself goes straight to the worker.

        A brief one would be over before anybody could take it into account; should it have to wait, its worker's audit shows it.
        """
        if decision.estimate_s < _BRIEF_S:
            return
        entry = QueueEntry(
            round.leg,
            round.session,
            round.number,
            round.history.l_hist,
            round.l_incr,
            decision.estimate_s,
            round.ask.ttft_target_s,
            self._wall(),
            priority=round.ask.priority,
        )
        round.queued_on = decision.worker
        self._store.enqueue_soon(decision.worker, entry)

    async def _replay(self, round: Round, error: WorkerGone) -> None:
        """After the bound decode worker has gone: bind anew and start over. Raises the error when tokens have left, or twice."""
        if round.phase not in (Phase.OPENED, Phase.STARTING) or round.replayed:
            raise error
        log.warning("decode worker %d is gone before round %s began, which is bound anew: %s", round.bound.id, round.id, error)
        self._quarantine.add(round.bound.id)
        round.custody.decode_gone()
        round.replayed = True
        await self._start_over(round)
        await self._opening.rebind(round, "worker_gone")

    async def _start_over(self, round: Round) -> None:
        """Settle what the failed attempt held; the next one computes the whole prompt anew."""
        await self._closing.leave_queue(round)
        self._closing.give_up(round)
        round.attempt += 1
        round.phase = Phase.OPENED

    async def _output(self, round: Round, chunk: DecodeChunk) -> dict[str, Any]:
        """A chunk as the frontend gets it. The store hears of the end before the last chunk leaves: a round may follow at once."""
        if chunk.stats is None:
            return chunk.output
        await self._closing.served_soon(round, chunk.handle)
        output = {**chunk.output, "completion_usage": usage(round)}
        if round.ask.wants_data:
            output["engine_data"] = {**(output.get("engine_data") or {}), "ampd": {**decided(round), **measured(round)}}
        return output


def _prefill_chunk(graph: Graph) -> int:
    """Tokens of prefill in one step of a decode worker; the smallest, should they differ."""
    return min(worker.prefill_chunk for worker in graph.workers if worker.role == "decode")
