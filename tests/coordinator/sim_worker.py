"""Workers in this process that keep the protocol of the real ones: pins, claims, fences, lazy reads, stops, abandoned rounds.

Their KV is the tokens themselves: what a worker computes from is what it has read, so an answer is right only if every read was.
Tests hold a worker still at a named gate, kill it, or make it fail there.
"""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from sim_caller import SimLeg
from sim_model import BLOCK, next_token

from ampd.errors import KvFenceError, RoundCancelled, WorkerGone
from ampd.ledger import build, chain_at
from ampd.messages import DecodeChunk, DecodeRequest, Handle, KvReply, KvRequest, PrefillRequest, PrefillResult, RoundStats
from ampd.workers.pins import PinTable

if TYPE_CHECKING:
    from sim_cluster import SimCluster


class SimWorker:
    """One worker. `gates` maps a phase to an event that must be set before the phase goes on."""

    def __init__(self, cluster: SimCluster, id: int, role: Literal["prefill", "decode"]) -> None:
        self.cluster, self.id, self.role = cluster, id, role
        self.epoch = uuid.uuid4().hex
        self.pins = PinTable(id, self.epoch, BLOCK, time.time)
        self.kv: dict[str, list[int]] = {}
        self.released_claimed: set[str] = set()
        self.gates: dict[str, asyncio.Event] = {}
        self.failures: dict[str, list[Exception]] = {}
        self.reached: dict[str, asyncio.Event] = {}
        self.expires_in_s = 1000.0
        self.prefills: list[PrefillRequest] = []
        self.decodes: list[DecodeRequest] = []
        self.causes: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.dead = False
        self.kv_written = 0
        self.finishing: dict[str, asyncio.Event] = {}  # of the rounds that stream
        self.finishes: list[str] = []  # heard
        self._refs = itertools.count()

    # ---- test controls

    def hold(self, phase: str) -> asyncio.Event:
        """Stop at a phase from now on; returns the event that is set when somebody arrives there."""
        self.gates[phase], self.reached[phase] = asyncio.Event(), asyncio.Event()
        return self.reached[phase]

    def let_go(self, phase: str) -> None:
        """Open a gate."""
        self.gates.pop(phase).set()

    def fail(self, phase: str, error: Exception) -> None:
        """Fail the next one to arrive at a phase."""
        self.failures.setdefault(phase, []).append(error)

    def kill(self) -> None:
        """Die: pins are lost, calls break."""
        self.dead = True
        for gate in self.gates.values():
            gate.set()

    async def _pass(self, phase: str, leg: SimLeg, stoppable: bool = True, finish: asyncio.Event | None = None) -> None:
        if phase in self.reached:
            self.reached[phase].set()
        if phase in self.gates:
            waits = [asyncio.ensure_future(self.gates[phase].wait())]
            if stoppable:
                waits.append(asyncio.ensure_future(leg.stopped.wait()))
            if finish is not None:
                waits.append(asyncio.ensure_future(finish.wait()))
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        if self.dead:
            raise WorkerGone(f"worker {self.id} died")
        if self.failures.get(phase):
            raise self.failures[phase].pop(0)
        if stoppable and leg.stopped.is_set():
            raise RoundCancelled(phase)

    # ---- the protocol

    def issue(self, round: str, session: str, tokens: list[int]) -> Handle:
        """Pin `tokens`."""
        ref = f"{self.id}:{next(self._refs)}"
        expires_at = time.time() + self.expires_in_s
        handle = self.pins.issue(round, session, ref, len(tokens), build(tokens, BLOCK), expires_at, {"ref": ref})
        self.kv[ref] = tokens
        self.cluster.issued += 1
        return handle

    def drop(self, handle: Handle) -> None:
        """Release a pin that this worker holds."""
        if self.pins.drop(handle):
            self.ended[handle.ref] += 1

    def kv_call(self, request: KvRequest) -> KvReply:
        """The `kv` endpoint."""
        if request.op == "finish":
            if self.failures.get("finish"):
                raise self.failures["finish"].pop(0)
            self.finishes.append(request.id)
            if request.id in self.finishing:
                self.finishing[request.id].set()
            return KvReply(ok=True)
        if request.op == "abandon":
            if (left := self.pins.of_round(request.id)) is not None:
                self.drop(left)
            return KvReply(ok=True)
        if request.op == "find":
            pin = self.pins.of_session(request.session)
            return KvReply(ok=False, cause="unknown") if pin is None else KvReply(ok=True, handle=pin.handle, ledger=pin.ledger)
        assert request.handle is not None
        if request.op == "release":
            if self.pins.is_claimed(request.handle):
                self.released_claimed.add(request.handle.ref)
            else:
                self.drop(request.handle)
            return KvReply(ok=True)
        try:
            self.pins.claim(request.handle, request.tokens, request.chain)
        except KvFenceError as e:
            return KvReply(ok=False, cause=e.cause)
        return KvReply(ok=True)

    def end_graces(self) -> None:
        """The grace of claimed pins that were released has passed."""
        for pin in list(self.pins._pins.values()):
            if pin.handle.ref in self.released_claimed:
                self.drop(pin.handle)

    async def prefill(self, request: PrefillRequest, leg: SimLeg) -> PrefillResult:
        self.prefills.append(request)
        await self._pass("queued", leg)
        await self.cluster.departed(self.id, request.id)
        known, recompute = await self._read_history(request, leg)
        await self._pass("prefilling", leg)
        computed = known + request.token_ids[len(known) :]
        handle = self.issue(request.id, request.session, computed)
        await self._pass("prefilled", leg)
        return PrefillResult(
            handle=handle,
            queue_s=0.0,
            read_s=0.0,
            prefill_s=0.0,
            read_tokens=len(known),
            cached_tokens=0,
            recompute=recompute,
            kv_written=self.kv_written,
        )

    async def _read_history(self, request: PrefillRequest, leg: SimLeg) -> tuple[list[int], str | None]:
        handle = request.history
        if handle is None:
            return [], None
        chain = chain_at(build(request.token_ids, BLOCK), request.l_hist, BLOCK)
        claim = KvRequest(op="claim", handle=handle, tokens=request.l_hist, chain=chain)
        reply = await self.cluster.kv(handle.worker, claim)
        if not reply.ok:
            self.causes[reply.cause or "?"] += 1
            return [], reply.cause
        await self._pass("reading", leg, stoppable=False)
        return self.cluster.workers[handle.worker].kv[handle.ref][: request.l_hist], None

    async def decode(self, request: DecodeRequest, leg: SimLeg, emit: Callable[[DecodeChunk], None]) -> None:
        self.decodes.append(request)
        if request.path == "local":
            await self._pass("queued", leg)
            await self.cluster.departed(self.id, request.id)
        elif request.history is not None:
            self.drop(request.history)
        computed, recompute, read, held = await self._prompt_kv(request, leg)
        await self._pass("starting", leg)
        wanted = (request.request["stop_conditions"] or {}).get("max_tokens") or 3
        if request.request.get("refuse"):
            emit(DecodeChunk(output={"token_ids": []}, refused="the engine says no"))
            return
        generated = await self._generate(request.id, computed, wanted, leg, emit)
        handle = self.issue(request.id, request.session, (computed + generated)[:-1]) if request.keep else None
        if request.path == "local" and handle is not None and request.history is not None:
            self.drop(request.history)
        await self._pass("ending", leg)
        stats = RoundStats(
            ttft_s=0.01,
            itl_s=0.001,
            tokens_out=len(generated),
            queue_s=0.0,
            read_s=0.0,
            read_tokens=read,
            cached_tokens=held,
            history_tokens=held,
            recompute=recompute,
        )
        output = {"token_ids": generated[-1:], "index": 0, "finish_reason": "length"}
        emit(DecodeChunk(output=output, stats=stats, handle=handle))

    async def _generate(
        self, id: str, computed: list[int], wanted: int, leg: SimLeg, emit: Callable[[DecodeChunk], None]
    ) -> list[int]:
        """All tokens of an answer; all but the last have been emitted."""
        generated: list[int] = []
        finish = self.finishing[id] = asyncio.Event()
        try:
            while True:
                generated.append(next_token(computed + generated))
                if len(generated) == wanted or finish.is_set():
                    return generated
                emit(DecodeChunk(output={"token_ids": generated[-1:], "index": 0}))
                await self._pass("streaming", leg, finish=finish)
        finally:
            del self.finishing[id]

    async def _prompt_kv(self, request: DecodeRequest, leg: SimLeg) -> tuple[list[int], str | None, int, int]:
        ledger = build(request.token_ids, BLOCK)
        prompt = request.token_ids
        try:
            if request.path == "remote":
                assert request.prefill is not None
                if chain_at(ledger, request.prefill.tokens, BLOCK) != request.prefill.chain:
                    raise KvFenceError("prefix")
                await self._pass("transferring", leg, stoppable=False)
                read = self.cluster.workers[request.prefill.worker].kv[request.prefill.ref]
                return list(read), None, len(read) - request.l_hist, request.l_hist
            if request.l_hist and request.history is not None:
                self.pins.check_local(request.history, request.l_hist, ledger)
                held = self.kv[request.history.ref][: request.l_hist]
                return held + prompt[request.l_hist :], None, 0, len(held)
        except KvFenceError as e:
            self.causes[e.cause] += 1
            return list(prompt), e.cause, 0, 0
        return list(prompt), None, 0, 0
