"""Redis for a store: scripts by digest over two shared connections, with a deadline for each call.

One connection carries decisions, the other everything else, so that no decision waits behind bulk (a write-back after an outage).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import hiredis

from ampd.errors import SetupError, StateError
from ampd.state.address import Address
from ampd.state.connection import Arg, Connection, Late, Lost, pack
from ampd.state.lane import Lane, Refused, is_certificate
from ampd.state.scripts import load_scripts
from ampd.state.template import Template

log = logging.getLogger(__name__)

Command = tuple[Arg, ...]
Call = tuple[str, Sequence[str], Sequence[Arg]]  # a script's name, keys and arguments
_CONNECT_S = 5.0
_SILENT_S = 2.0


class Use(Enum):
    """What a call is for: how many times `deadline_s` it may take, and whether it goes with the decisions.

    A look at the workers must not wait, since the last view is nearly as good. An opening and a change of a session may: to go on
    without their answer can cost the session its history, or its worker. Nobody waits for a report.
    """

    DECISION = (1, True)
    OPENING = (100, True)
    CHANGE = (100, False)
    REPORT = (200, False)

    def __init__(self, multiple: int, decides: bool) -> None:
        self.multiple, self.decides = multiple, decides


class RedisClient:
    """Every method raises StateError when Redis does not answer in time or refuses; the cause is Lost, OSError or Redis's answer,
    and None when an answer was merely late."""

    def __init__(self, url: str, password: str | None, deadline_s: float, max_pending: int) -> None:
        """Raises ConfigError on a bad URL."""
        self._address = Address.parse(url, password)
        self.where = self._address.where
        self._deadline_s = deadline_s
        self._scripts = load_scripts()
        self._texts: dict[Arg, str] = {script.digest: script.text for script in self._scripts.values()}
        self._tasks: set[asyncio.Task[None]] = set()
        self._decisions, self._rest = (Lane(self._address, max_pending, _SILENT_S, _CONNECT_S) for _ in range(2))
        self.failed = 0  # requests of `run_soon` that were not carried out

    async def connect(self, key: str, value: str, load: bool = True) -> str:
        """Check address, password and rights, and load the scripts if asked to. Returns what `key` holds: `value` if nothing.

        Raises SetupError in one line. The deadline of calls does not apply: a process that starts may be slow.
        """
        commands: list[Command] = [("SCRIPT", "LOAD", script.text) for script in self._scripts.values() if load]
        commands += [("SETNX", key, value), ("GET", key)]
        try:
            await self._ready(self._decisions, _CONNECT_S, hurry=True)
            connection = await self._ready(self._rest, _CONNECT_S, hurry=True)
            replies = await self._exchange(connection, b"".join(map(pack, commands)), len(commands), _CONNECT_S, None)
            for reply in replies:
                self._check(reply)
        except StateError as e:
            raise SetupError(self._advice(e)) from None
        found: bytes = replies[-1]
        return found.decode(errors="replace")

    def _advice(self, error: StateError) -> str:
        cause, where = error.__cause__, f"state.url {self.where}"
        if isinstance(cause, Refused) or "NOAUTH" in str(cause):
            return f"{where}: Redis refused the password ({cause}); state.password_env names the variable that holds it"
        if isinstance(cause, hiredis.ReplyError):
            return f"{where}: Redis refused a command ({cause}); docs/state.md lists the rights that ampd needs"
        if is_certificate(cause):
            return f"{where}: no TLS with this Redis ({cause}); ssl_ca_certs in the URL names the certificate to trust"
        return f"{where}: cannot reach Redis ({cause or error}); is it running, and is the address right?"

    async def close(self) -> None:
        """Wait for the answers under way, then give back the connections."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CONNECT_S)
        await asyncio.gather(self._decisions.close(_CONNECT_S), self._rest.close(_CONNECT_S))

    async def run(
        self, use: Use, script: str, keys: Sequence[str], args: Sequence[Arg], late: Callable[[Any], None] | None = None
    ) -> Any:
        """Run a script. `late` gets the reply if the caller was cancelled or gave up before it came."""
        answer = None if late is None else _late_one(late)
        return (await self._call(use, (self._by_digest(script, keys, args),), answer))[0]

    def template(self, script: str, keys: Sequence[Arg], own_keys: int, own_args: int, args: Sequence[Arg]) -> Template:
        """The call of a script whose last keys and first arguments differ from call to call, for `fill`."""
        return Template(self._scripts[script], keys, own_keys, own_args, args)

    async def fill(self, use: Use, template: Template, values: Sequence[bytes], late: Callable[[Any], None]) -> Any:
        """Run a script like `run`, ready but for these keys and arguments."""
        lane, limit_s = self._decisions if use.decides else self._rest, self._deadline_s * use.multiple
        connection, answer = lane.connection or await self._ready(lane, limit_s), _late_one(late)
        reply = (await self._exchange(connection, template.fill(values), 1, limit_s, answer))[0]
        if isinstance(reply, hiredis.ReplyError):
            if not _is_forgotten(reply):
                self._check(reply)
            reply = (await self._exchange(connection, template.fill(values, text=True), 1, limit_s, answer))[0]
            self._check(reply)
        return reply

    async def run_all(self, use: Use, calls: Sequence[Call]) -> None:
        """Run scripts one after the other, in one write and one wait."""
        await self._call(use, [self._by_digest(*call) for call in calls], None)

    async def command(self, use: Use, *args: Arg) -> Any:
        """Run a plain command."""
        return (await self._call(use, (args,), None))[0]

    def run_soon(self, script: str, keys: Sequence[str], args: Sequence[Arg]) -> None:
        """Run a script that nobody waits for, after all that this process has asked for on the same connection before."""
        command = self._by_digest(script, keys, args)
        try:
            if self._rest.connection is None:
                raise self._rest.error
            future = self._rest.connection.send(pack(command))
        except (StateError, Lost, OSError, Refused) as e:
            self._rest.open_soon()
            self._not_run(script, e)
            return

        def done(future: asyncio.Future[list[Any]]) -> None:
            error = future.exception() or future.result()[0]
            if _is_forgotten(error):
                task = asyncio.create_task(self._again(script, command))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif isinstance(error, Exception):
                self._not_run(script, error)

        future.add_done_callback(done)

    async def _again(self, script: str, command: Command) -> None:
        try:
            await self._call(Use.REPORT, (command,), None)
        except StateError as e:
            self._not_run(script, e)

    def _not_run(self, script: str, error: BaseException) -> None:
        self.failed += 1
        level = logging.WARNING if self.failed == 1 else logging.DEBUG
        log.log(level, "%s was not carried out by Redis at %s: %s", script, self.where, error)

    def _by_digest(self, script: str, keys: Sequence[str], args: Sequence[Arg]) -> Command:
        return ("EVALSHA", self._scripts[script].digest, len(keys), *keys, *args)

    async def _call(self, use: Use, commands: Sequence[Command], late: Late | None) -> list[Any]:
        lane, limit_s = self._decisions if use.decides else self._rest, self._deadline_s * use.multiple
        connection = lane.connection or await self._ready(lane, limit_s)
        replies = await self._exchange(connection, b"".join(map(pack, commands)), len(commands), limit_s, late)
        for i, reply in enumerate(replies):
            if isinstance(reply, hiredis.ReplyError):
                if not _is_forgotten(reply):
                    self._check(reply)
                text = self._texts[commands[i][1]]
                (replies[i],) = await self._exchange(connection, pack(("EVAL", text, *commands[i][2:])), 1, limit_s, late)
                self._check(replies[i])
        return replies

    def _check(self, reply: object) -> None:
        if isinstance(reply, hiredis.ReplyError):
            raise StateError(f"Redis at {self.where}: {reply}") from reply

    async def _ready(self, lane: Lane, limit_s: float, hurry: bool = False) -> Connection:
        try:
            async with asyncio.timeout(limit_s):
                return await lane.connected(hurry)
        except TimeoutError:
            raise StateError(f"Redis at {self.where}: no connection within {limit_s * 1000:.0f} ms ({lane.error})") from lane.error
        except (OSError, Lost, Refused) as e:
            raise StateError(f"Redis at {self.where}: {e or type(e).__name__}") from e

    async def _exchange(self, connection: Connection, data: bytes, count: int, limit_s: float, late: Late | None) -> list[Any]:
        """Write `count` commands and wait for their replies, errors among them."""
        future: asyncio.Future[list[Any]] | None = None
        try:
            future = connection.send(data, count, late, limit_s)
            return await future
        except asyncio.CancelledError:
            # Cancelled between the arrival of the replies and now: nobody else will see them.
            if late is not None and future is not None and future.done() and not future.cancelled() and future.exception() is None:
                late(future.result())
            raise
        except Lost as e:
            raise StateError(f"Redis at {self.where}: {e}") from e


def _is_forgotten(reply: object) -> bool:
    """Whether Redis does not know a script by its digest: it has restarted, or was told to forget."""
    return isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT")


def _late_one(late: Callable[[Any], None]) -> Late:
    def answer(replies: list[Any]) -> None:
        if not isinstance(replies[0], hiredis.ReplyError):
            late(replies[0])

    return answer
