"""A connection to Redis that is opened again, with growing pauses, whenever it ends."""

from __future__ import annotations

import asyncio
import ssl

import hiredis

from ampd.state.address import Address
from ampd.state.connection import Connection, Lost, pack

_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.02, 1.0


class Refused(Exception):
    """Redis does not let us in; the cause is its answer."""


class Lane:
    """At most one live connection. `connection` is None while there is none; `error` says why."""

    def __init__(self, address: Address, max_pending: int, silent_s: float, connect_s: float) -> None:
        self.connection: Connection | None = None
        self.error: Exception = Lost("not connected yet")
        self._address, self._max_pending, self._silent_s, self._connect_s = address, max_pending, silent_s, connect_s
        self._opener: asyncio.Task[None] | None = None
        self._attempt: asyncio.Future[Connection] | None = None  # how the attempt that is running or comes next ends
        self._hurry = asyncio.Event()
        self._closing = False

    async def connected(self, hurry: bool = False) -> Connection:
        """The live connection, or the one that the next attempt brings. `hurry` ends the pause before it.

        Raises the attempt's error: OSError, Lost or Refused.
        """
        if self.connection is not None:
            return self.connection
        if hurry:
            self._hurry.set()
        self.open_soon()
        if self._attempt is None:
            self._attempt = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._attempt)

    def open_soon(self) -> None:
        """Start trying, unless that is under way."""
        if self.connection is None and not self._closing and (self._opener is None or self._opener.done()):
            self._opener = asyncio.create_task(self._open_until_it_works())

    async def close(self, timeout_s: float) -> None:
        """Wait for the replies that are owed, then close for good."""
        self._closing = True
        if self._opener is not None:
            self._opener.cancel()
            await asyncio.gather(self._opener, return_exceptions=True)
        self._settle(Lost("closed"))
        if self.connection is not None:
            await self.connection.finish(timeout_s)

    async def _open_until_it_works(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while self.connection is None:
            try:
                self._settle(await self._open())
            except (OSError, Lost, Refused) as e:
                self.error = e
                self._settle(e)
                self._hurry.clear()
                try:
                    await asyncio.wait_for(self._hurry.wait(), pause_s)
                except TimeoutError:
                    pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    async def _open(self) -> Connection:
        """Connect, and say who we are."""
        loop, address = asyncio.get_running_loop(), self._address

        def make() -> Connection:
            return Connection(address.where, self._max_pending, self._silent_s, self._ended)

        connection: Connection | None = None
        try:
            async with asyncio.timeout(self._connect_s):
                if address.path is not None:
                    _, connection = await loop.create_unix_connection(make, address.path)
                else:
                    _, connection = await loop.create_connection(make, address.host, address.port, ssl=address.tls)
                greeting = [pack(command) for command in address.greeting()]
                replies = await connection.send(b"".join(greeting), len(greeting))
        except TimeoutError:
            error: Exception = Lost(f"no connection within {self._connect_s:.0f} s")
        except (OSError, Lost) as e:
            error = e
        except asyncio.CancelledError:
            if connection is not None:
                connection.abort(Lost("closed"))
            raise
        else:
            refused = next((reply for reply in replies if isinstance(reply, hiredis.ReplyError)), None)
            if refused is None:
                self.connection = connection
                return connection
            error = Refused(str(refused))
        if connection is not None:
            connection.abort(error)
        raise error

    def _settle(self, outcome: Connection | Exception) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is None or attempt.done():
            return
        if isinstance(outcome, Connection):
            attempt.set_result(outcome)
        else:
            attempt.set_exception(outcome)
            attempt.exception()  # who still waits sees it; nobody else has to

    def _ended(self, connection: Connection, reason: Exception) -> None:
        if connection is self.connection:
            self.connection, self.error = None, reason
            self.open_soon()


def is_certificate(error: BaseException | None) -> bool:
    """Whether a connection failed over a certificate or the TLS handshake."""
    return isinstance(error, ssl.SSLError)
