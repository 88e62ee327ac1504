"""Steps 5 and 6 of a round: the calls to the workers, each stopped with its caller and bounded in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable

from ampd.coordinator import watch
from ampd.coordinator.closing import Closing
from ampd.coordinator.round import Phase, Round
from ampd.coordinator.watch import Watch
from ampd.coordinator.workers import Caller, Leg, Workers
from ampd.errors import RequestError, RoundCancelled, WorkerError
from ampd.messages import DecodeChunk, DecodeRequest, Handle, KvRequest, PrefillRequest
from ampd.policy.types import Decision

log = logging.getLogger(__name__)


class Legs:
    """Runs the legs of rounds. `timeout_s` bounds the time without any progress."""

    def __init__(
        self,
        workers: Workers,
        closing: Closing,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._workers, self._closing, self._clock = workers, closing, clock
        self._watch = Watch(timeout_s, clock)

    async def prefill(self, round: Round, decision: Decision, caller: Caller) -> None:
        """The remote prefill; leaves its result in the round. Raises RoundCancelled, WorkerError, TimeoutError."""
        round.phase = Phase.PREFILLING
        history = round.custody.history if round.history.l_hist else None
        request = PrefillRequest(
            id=round.leg,
            session=round.session,
            round=round.number,
            token_ids=round.ask.token_ids,
            l_hist=round.history.l_hist if history is not None else 0,
            history=history,
            estimate_s=decision.estimate_s,
            elapsed_s=self._clock() - round.arrived_at,
            ttft_target_s=round.ask.ttft_target_s,
            priority=round.ask.priority,
            cache_salt=round.ask.cache_salt,
            trace=caller.trace(),
        )
        with self._watch.call(caller, round.leg) as call:
            round.awaiting = decision.worker
            if history is not None:
                round.custody.lend_to_prefill()
            round.prefilled = await self._workers.prefill(decision.worker, request, call.leg)
        round.awaiting = None
        round.custody.prefilled = round.prefilled.handle
        round.queued_on = None  # the worker has taken the task off its queue

    async def decode(self, round: Round, decision: Decision, caller: Caller) -> AsyncGenerator[DecodeChunk]:
        """The round on its decode worker, chunk by chunk; the last one has `stats`.

        Raises RequestError (the engine refuses the request), RoundCancelled, WorkerError, TimeoutError.
        """
        round.phase = Phase.STARTING
        request = self._decode_request(round, decision, caller)
        with self._watch.call(caller, round.leg, lambda: self._finish(round)) as call:
            round.awaiting = round.bound.id
            round.custody.lend_to_decode(decision.path)
            chunks = aiter(self._workers.decode(round.bound.id, request, call.leg))
            try:
                while (chunk := await anext(chunks, None)) is not None:
                    if chunk.refused is not None:
                        raise RequestError(chunk.refused)
                    self._note(round, chunk)
                    call.idle()
                    yield chunk
                    call.waiting()
            except GeneratorExit:
                if not round.can_finish:
                    raise
                round.rest = self._rest(round, chunks, call.leg)  # which may await; the leg is its own to stop
                return
            if round.stats is None:
                raise WorkerError(f"decode worker {round.bound.id} ended round {round.id} without its last chunk")
        if round.left:
            raise RoundCancelled(round.id)

    async def _finish(self, round: Round) -> bool:
        """Have a round that streams end with its KV kept; False for one that must be stopped instead."""
        if not round.can_finish:
            return False
        round.left = True
        try:
            return (await self._workers.kv(round.bound.id, KvRequest(op="finish", id=round.leg))).ok
        except WorkerError:
            return False

    async def _rest(self, round: Round, chunks: AsyncIterator[DecodeChunk], leg: Leg) -> None:
        """Read what is left of a round that nobody pulls any more, and close it with the handle that its last chunk carries."""
        handle: Handle | None = None
        try:
            async with asyncio.timeout(watch.FINISH_S):
                told = await self._finish(round)
                while told and round.stats is None and (chunk := await anext(chunks, None)) is not None:
                    self._note(round, chunk)
                    handle = chunk.handle
        except (WorkerError, TimeoutError) as e:
            log.warning("round %s, which nobody reads, ends without its KV: %s", round.id, e)
        if round.stats is None:
            leg.stop_generating()
        else:
            await self._closing.served(round, handle)

    def _decode_request(self, round: Round, decision: Decision, caller: Caller) -> DecodeRequest:
        return DecodeRequest(
            id=round.leg,
            session=round.session,
            round=round.number,
            path=decision.path,
            token_ids=round.ask.token_ids,
            l_hist=round.history.l_hist,
            request=round.ask.raw,
            prefill=round.custody.prefilled,
            history=round.custody.history,
            keep=round.keep,
            prefill_worker=decision.worker,
            estimate_s=decision.estimate_s,
            elapsed_s=self._clock() - round.arrived_at,
            ttft_target_s=round.ask.ttft_target_s,
            itl_target_s=round.ask.itl_target_s,
            priority=round.ask.priority,
            trace=caller.trace(),
        )

    def _note(self, round: Round, chunk: DecodeChunk) -> None:
        if chunk.stats is not None:
            round.stats, round.awaiting = chunk.stats, None
        token_ids = chunk.output.get("token_ids") or ()
        round.tokens_out += len(token_ids)
        if not chunk.output.get("index"):
            round.generated.extend(token_ids)
        if token_ids and round.phase is Phase.STARTING:
            round.phase = Phase.STREAMING
            round.queued_on = None
            if (read := round.custody.first_token()) is not None:
                self._closing.release([read])
