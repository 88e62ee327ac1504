"""Steps 5 and 6 of a round: the calls to the workers, each stopped with its caller and bounded in time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from ampd.coordinator.closing import Closing
from ampd.coordinator.round import Phase, Round
from ampd.coordinator.workers import Caller, Leg, Workers
from ampd.errors import RequestError, RoundCancelled, WorkerError
from ampd.messages import DecodeChunk, DecodeRequest, Handle, KvRequest, PrefillRequest
from ampd.policy.types import Decision

log = logging.getLogger(__name__)

# How long a round that was told to finish may take: one engine step and its last chunk.
_FINISH_S = 10.0


class Legs:
    """Runs the legs of rounds. `timeout_s` bounds the time without any progress."""

    def __init__(
        self,
        workers: Workers,
        closing: Closing,
        ttft_target_s: float,
        timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._workers, self._closing, self._clock = workers, closing, clock
        self._ttft_target_s, self._timeout_s = ttft_target_s, timeout_s

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
            ttft_target_s=self._ttft_target_s,
            cache_salt=round.ask.cache_salt,
            trace=caller.trace(),
        )
        async with _call(caller, round.leg) as leg, asyncio.timeout(self._timeout_s):
            round.awaiting = decision.worker
            if history is not None:
                round.custody.lend_to_prefill()
            round.prefilled = await self._workers.prefill(decision.worker, request, leg)
        round.awaiting = None
        round.custody.prefilled = round.prefilled.handle
        round.queued_on = None  # the worker has taken the task off its queue

    async def decode(self, round: Round, decision: Decision, caller: Caller) -> AsyncGenerator[DecodeChunk]:
        """The round on its decode worker, chunk by chunk; the last one has `stats`.

        Raises RequestError (the engine refuses the request), RoundCancelled, WorkerError, TimeoutError.
        """
        round.phase = Phase.STARTING
        request = self._decode_request(round, decision, caller)
        async with _call(caller, round.leg, lambda: self._finish(round)) as leg:
            round.awaiting = round.bound.id
            round.custody.lend_to_decode(decision.path)
            chunks = aiter(self._workers.decode(round.bound.id, request, leg))
            try:
                while (chunk := await self._next(chunks)) is not None:
                    if chunk.refused is not None:
                        raise RequestError(chunk.refused)
                    self._note(round, chunk)
                    yield chunk
            except GeneratorExit:
                if not round.can_finish:
                    raise
                round.rest = self._rest(round, chunks, leg)  # which may await; the leg is its own to stop
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
            async with asyncio.timeout(_FINISH_S):
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
            ttft_target_s=self._ttft_target_s,
            trace=caller.trace(),
        )

    async def _next(self, chunks: AsyncIterator[DecodeChunk]) -> DecodeChunk | None:
        async with asyncio.timeout(self._timeout_s):
            return await anext(chunks, None)

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


@asynccontextmanager
async def _call(caller: Caller, id: str, finish: Callable[[], Awaitable[bool]] | None = None) -> AsyncIterator[Leg]:
    """A leg that is stopped when its caller goes away or its use fails. Raises RoundCancelled when the caller is gone.

    `finish` has the worker end it soon, or says that it cannot; the leg is then stopped only if it does not end.
    """
    if caller.gone():
        raise RoundCancelled(id)
    leg = caller.leg(id)

    async def watch() -> None:
        await caller.wait_gone()
        if finish is not None and await finish():
            await asyncio.sleep(_FINISH_S)
        leg.stop_generating()

    watcher = asyncio.create_task(watch())
    ended = False
    try:
        yield leg
        ended = True
    except (WorkerError, TimeoutError) as e:
        if caller.gone():
            raise RoundCancelled(id) from e
        raise
    finally:
        watcher.cancel()
        if not ended:
            leg.stop_generating()
