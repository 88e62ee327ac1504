"""How simulated engines read each other's KV: within a process directly, between processes by messages over TCP.

The messages stand where NIXL's side channel and notifications are: a reader asks the holder for the content of a pin's blocks, and
tells it when the pin is over. The bytes of the KV itself never move; the time that they would take is slept.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import struct
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from ampd.errors import WorkerError

log = logging.getLogger(__name__)

_LENGTH = struct.Struct("<I")


class Lent(msgspec.Struct, frozen=True, array_like=True):
    """The holder's answer: the transfer's end, in seconds from now, and the contents of the blocks."""

    ends_in_s: float
    contents: list[bytes]


class Read(msgspec.Struct, frozen=True, array_like=True):
    """A transfer that takes `seconds` of both links, and may not begin within `not_before_s`: the reader's link is taken so long.

    Of pin `ref` it moves `count` blocks from `first` on.
    """

    ref: str
    first: int
    count: int
    seconds: float
    not_before_s: float


class _Message(msgspec.Struct, array_like=True):
    """Asks engine `engine` for a read, or ends its pin `over`; or answers `number`."""

    number: int
    engine: str = ""
    read: Read | None = None
    over: str | None = None
    lent: Lent | None = None


class Holder(Protocol):
    """An engine that holds pins."""

    def lend(self, read: Read) -> Lent | None:
        """Begin a transfer; None when the pin is gone or the holder refuses."""

    def read_over(self, ref: str) -> None:
        """Whoever was to read the pin is done with it."""


class Link:
    """One engine's share of the network: transfers follow each other, which takes as long for all of them as sharing would."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._free_at = 0.0

    def owed_s(self) -> float:
        """Seconds until the last transfer ends."""
        return max(0.0, self._free_at - self._clock())

    def occupy(self, seconds: float, not_before_s: float = 0.0) -> float:
        """Add a transfer; returns the seconds until its end."""
        ends_in_s = max(self.owed_s(), not_before_s) + seconds
        self.until(ends_in_s)
        return ends_in_s

    def until(self, ends_in_s: float) -> None:
        """The link is taken for so long at least."""
        self._free_at = max(self._free_at, self._clock() + ends_in_s)


class Fabric:
    """One process's engines and its ways to those of others. `port` 0 takes a free one."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        self.host, self.port, self._timeout_s = host, port, timeout_s
        self._holders: dict[str, Holder] = {}
        self._peers: dict[tuple[str, int], _Peer] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._serving: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}

    async def join(self, engine: str, holder: Holder) -> None:
        """Let others read from `holder`. Raises OSError when the port is taken."""
        if not self._holders:
            self._server = await asyncio.start_server(self._serve, self.host, self.port)
            self.port = self._server.sockets[0].getsockname()[1]
        self._holders[engine] = holder

    async def leave(self, engine: str) -> None:
        """Its pins cannot be read any more."""
        self._holders.pop(engine, None)
        if self._holders or self._server is None:
            return
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for peer in self._peers.values():
            peer.close()
        self._server.close()
        self._server = None
        serving = list(self._serving.items())
        for writer, _ in serving:
            writer.close()
        await asyncio.gather(*[task for _, task in serving if task is not None])

    async def read(self, host: str, port: int, engine: str, read: Read) -> Lent:
        """Begin a transfer from a pin. Raises WorkerError when the holder refuses or cannot be reached."""
        if self._is_mine(host, port):
            holder = self._holders.get(engine)
            lent = None if holder is None else holder.lend(read)
        else:
            try:
                async with asyncio.timeout(self._timeout_s):
                    lent = await self._peer(host, port).ask(engine, read)
            except (OSError, TimeoutError) as e:
                raise WorkerError(f"engine {engine} at {host}:{port} cannot be reached: {e}") from e
        if lent is None:
            raise WorkerError(f"engine {engine} does not lend pin {read.ref}")
        return lent

    def over(self, host: str, port: int, engine: str, ref: str) -> None:
        """Tell the holder, without waiting, that nobody will read a pin. One that cannot be reached keeps it to its expiry."""
        if self._is_mine(host, port):
            if (holder := self._holders.get(engine)) is not None:
                holder.read_over(ref)
            return
        task = asyncio.create_task(self._tell(host, port, engine, ref), name=f"pin-over-{ref}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, host: str, port: int, engine: str, ref: str) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._peer(host, port).tell(engine, ref)
        except (OSError, TimeoutError) as e:
            log.warning("pin %s of engine %s stays to its expiry: %s", ref, engine, e)

    def _is_mine(self, host: str, port: int) -> bool:
        return (host, port) == (self.host, self.port)

    def _peer(self, host: str, port: int) -> _Peer:
        peer = self._peers.get((host, port))
        if peer is None or peer.closed:
            peer = self._peers[host, port] = _Peer(host, port)
        return peer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._serving[writer] = asyncio.current_task()
        try:
            while (message := await _receive(reader)) is not None:
                holder = self._holders.get(message.engine)
                if message.read is not None:
                    lent = None if holder is None else holder.lend(message.read)
                    _send(writer, _Message(message.number, lent=lent))
                elif message.over is not None and holder is not None:
                    holder.read_over(message.over)
        except (OSError, msgspec.DecodeError) as e:
            log.warning("a peer's connection breaks: %s", e)
        finally:
            del self._serving[writer]
            writer.close()


class _Peer:
    """A connection to another process, opened when it is needed first."""

    def __init__(self, host: str, port: int) -> None:
        self._opening = asyncio.ensure_future(asyncio.open_connection(host, port))
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Lent | None]] = {}
        self._reading: asyncio.Task[None] | None = None
        self.closed = False

    async def ask(self, engine: str, read: Read) -> Lent | None:
        writer = await self._writer()
        number = next(self._numbers)
        answer: asyncio.Future[Lent | None] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        _send(writer, _Message(number, engine, read=read))
        try:
            return await answer
        finally:
            del self._answers[number]

    async def tell(self, engine: str, ref: str) -> None:
        _send(await self._writer(), _Message(0, engine, over=ref))

    def close(self) -> None:
        self.closed = True
        if self._reading is not None:
            self._reading.cancel()
        else:
            self._opening.cancel()

    async def _writer(self) -> asyncio.StreamWriter:
        try:
            reader, writer = await asyncio.shield(self._opening)
        except OSError:
            self.closed = True
            raise
        if self.closed:
            raise ConnectionResetError("the connection has broken")
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(reader, writer), name="sim-peer")
        return writer

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (message := await _receive(reader)) is not None:
                answer = self._answers.get(message.number)
                if answer is not None and not answer.done():
                    answer.set_result(message.lent)
        except (OSError, msgspec.DecodeError) as e:
            log.warning("a peer's connection breaks: %s", e)
        finally:
            self.closed = True
            writer.close()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ConnectionResetError("the peer is gone"))


def _send(writer: asyncio.StreamWriter, message: _Message) -> None:
    data: Any = msgspec.msgpack.encode(message)
    writer.write(_LENGTH.pack(len(data)) + data)


async def _receive(reader: asyncio.StreamReader) -> _Message | None:
    """The next message, None at the connection's end."""
    try:
        head = await reader.readexactly(_LENGTH.size)
        return msgspec.msgpack.decode(await reader.readexactly(_LENGTH.unpack(head)[0]), type=_Message)
    except asyncio.IncompleteReadError:
        return None
