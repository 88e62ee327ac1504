"""Steps 5 and 6 of a round: the calls to the workers, each stopped with its caller and bounded in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager

from ampd.coordinator.closing import Closing
from ampd.coordinator.round import Phase, Round
from ampd.coordinator.workers import Caller, Leg, Workers
from ampd.errors import RequestError, RoundCancelled, WorkerError
from ampd.messages import DecodeChunk, DecodeRequest, PrefillRequest
from ampd.policy.types import Decision


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
        async with _call(caller, round.leg) as leg:
            round.awaiting = round.bound.id
            round.custody.lend_to_decode(decision.path)
            chunks = aiter(self._workers.decode(round.bound.id, request, leg))
            while (chunk := await self._next(chunks)) is not None:
                if chunk.refused is not None:
                    raise RequestError(chunk.refused)
                self._note(round, chunk)
                yield chunk
            if round.stats is None:
                raise WorkerError(f"decode worker {round.bound.id} ended round {round.id} without its last chunk")

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
async def _call(caller: Caller, id: str) -> AsyncIterator[Leg]:
    """A leg that is stopped when its caller goes away or its use fails. Raises RoundCancelled when the caller is gone."""
    if caller.gone():
        raise RoundCancelled(id)
    leg = caller.leg(id)

    async def watch() -> None:
        await caller.wait_gone()
        leg.stop_generating()

    watcher = asyncio.create_task(watch())
    ended = False
    try:
        yield leg
        ended = True
    except WorkerError as e:
        if caller.gone():
            raise RoundCancelled(id) from e
        raise
    finally:
        watcher.cancel()
        if not ended:
            leg.stop_generating()
