"""A light load for the Coordinator's benchmark: one-token rounds of multi-round sessions over keep-alive connections.

Requests are rendered before the clock starts, and answers are only looked at for their status and end: on a machine of few cores a
client library would take more of them than what is measured.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from ampd.errors import AmpdError

_END = b"\r\n0\r\n\r\n"
_PATIENCE_S = 30.0
_OK = b"HTTP/1.1 200"


@dataclass(frozen=True, slots=True)
class Shape:
    """Sessions of `rounds` rounds: `first` prompt tokens, then `more` further ones in each round."""

    rounds: int = 8
    first: int = 96
    more: int = 32


def render_sessions(shape: Shape, model: str, count: int, rng: random.Random) -> list[list[bytes]]:
    """Whole requests of new sessions, round by round; the last round of each says that it is the last."""
    return [_session(shape, model, rng) for _ in range(count)]


def _session(shape: Shape, model: str, rng: random.Random) -> list[bytes]:
    tokens = [rng.randrange(3, 250) for _ in range(shape.first + shape.more * shape.rounds)]
    session = f"bench-{uuid.UUID(int=rng.getrandbits(128))}"
    requests = []
    for number in range(shape.rounds):
        body = json.dumps({"model": model, "prompt": tokens[: shape.first + shape.more * number], "max_tokens": 1}).encode()
        final = "x-dynamo-session-final: true\r\n" if number == shape.rounds - 1 else ""
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
            f"x-dynamo-session-id: {session}\r\n{final}content-length: {len(body)}\r\n\r\n"
        )
        requests.append(head.encode() + body)
    return requests


class _Connection(asyncio.Protocol):
    """Sends the next request when the answer to the one before is complete."""

    def __init__(self, requests: Iterator[bytes], until: float) -> None:
        self.seconds: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._requests, self._until = requests, until
        self._answer = b""
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._next()

    def _next(self) -> None:
        now = time.perf_counter()
        request = next(self._requests, None) if now < self._until else None
        if request is None:
            self._transport.close()
            self.done.set_result(None)
            return
        self._sent_at = now
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if not self._answer.endswith(_END):
            return
        self.seconds.append(time.perf_counter() - self._sent_at)
        answer, self._answer = self._answer, b""
        if answer.startswith(_OK):
            self._next()
        else:
            self._fail(f"the frontend answered {answer[:500].decode(errors='replace')}")

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(f"the frontend closed a connection: {error}")

    def _fail(self, why: str) -> None:
        if not self.done.done():
            self._transport.close()
            self.done.set_exception(AmpdError(why))


async def run_load(url: str, sessions: list[list[bytes]], connections: int, seconds: float) -> tuple[list[float], float]:
    """Seconds of each answered round, and how long it all took: `connections` sessions side by side, one after the other.

    Raises AmpdError when a round is not answered with 200.
    """
    address = urlsplit(url)
    loop = asyncio.get_running_loop()
    started = time.perf_counter()
    pending = iter(sessions)

    def rounds() -> Iterator[bytes]:
        for session in pending:  # shared: the next session that no connection has taken
            yield from session

    made = [
        await loop.create_connection(lambda: _Connection(rounds(), started + seconds), address.hostname or "", address.port or 80)
        for _ in range(connections)
    ]
    async with asyncio.timeout(seconds + _PATIENCE_S):
        await asyncio.gather(*(connection.done for _, connection in made))
    took = time.perf_counter() - started
    return [s for _, connection in made for s in connection.seconds], took
