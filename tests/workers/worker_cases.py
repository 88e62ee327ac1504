"""Workers over a scripted engine, and what is asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from scripted_engine import BLOCK, ScriptedEngine

from ampd.errors import WorkerError
from ampd.ledger import build, chain_at
from ampd.messages import DecodeChunk, DecodeRequest, Handle, KvReply, KvRequest, PrefillRequest, pack_params
from ampd.policy.reordering import Reordering, reorder
from ampd.policy.types import PrefillTask
from ampd.workers.decode import serve_decode
from ampd.workers.worker import Worker, WorkerIdentity

PROMPT = list(range(100, 116))  # four blocks


class Telemetry:
    def __init__(self) -> None:
        self.ttfts: list[tuple[int, float]] = []
        self.gaps = 0

    def departed(self, task: str, postponed: Sequence[str]) -> None: ...
    def touch(self) -> None: ...
    def ttft(self, worker: int, seconds: float) -> None:
        self.ttfts.append((worker, seconds))

    def itl(self, worker: int, seconds: float, count: int) -> None:
        self.gaps += count


class Peer:
    """The decode worker at the other end of a claim."""

    def __init__(self, answer: Callable[[KvRequest], KvReply] | None = None, error: WorkerError | None = None) -> None:
        self.answer, self.error = answer, error
        self.asked: list[KvRequest] = []
        self.arrived, self.go_on = asyncio.Event(), asyncio.Event()
        self.go_on.set()

    async def kv(self, request: KvRequest) -> KvReply:
        self.asked.append(request)
        self.arrived.set()
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        return self.answer(request) if self.answer else KvReply(ok=True)


def order(tasks: Sequence[PrefillTask], now: float) -> Reordering:
    return reorder(tasks, now, 3)


def make(role: str, engine: ScriptedEngine) -> Worker:
    identity = WorkerIdentity(1, "prefill" if role == "prefill" else "decode", "epoch", 1)
    return Worker(identity, engine, Telemetry(), order, grace_s=30.0, pin_ttl_s=60.0)


def history(tokens: int = 12) -> Handle:
    return Handle(9, "e9", "s", "ref9", tokens, chain_at(build(PROMPT, BLOCK), tokens, BLOCK), 1e12, pack_params({"from": "d"}))


def prefill_request(id: str = "r", held: Handle | None = None) -> PrefillRequest:
    return PrefillRequest(
        id=id,
        session="s",
        round=2,
        token_ids=PROMPT,
        l_hist=12 if held else 0,
        history=held,
        estimate_s=0.1,
        elapsed_s=0.0,
        ttft_target_s=1.0,
    )


def decode_request(id: str = "r", session: str = "s", held: Handle | None = None, **more: object) -> DecodeRequest:
    known: dict[str, object] = {
        "path": "local",
        "token_ids": PROMPT,
        "l_hist": 12 if held else 0,
        "request": {},
        "prefill": None,
        "keep": True,
        "prefill_worker": 1,
    }
    return DecodeRequest(
        id=id, session=session, round=2, history=held, estimate_s=0.1, elapsed_s=0.5, ttft_target_s=1.0, **{**known, **more}
    )


async def play(worker: Worker, request: DecodeRequest) -> list[DecodeChunk]:
    return [chunk async for chunk in serve_decode(worker, request)]
