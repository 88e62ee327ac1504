"""One Redis client for a store: scripts by digest, a deadline for each call, and safety under cancellation.

redis-py's known fault (redis/redis-py#2624): a command cancelled while its reply is under way leaves the connection holding that
reply for the next caller. So every command runs in a task of its own that nothing cancels; the caller only waits for it, up to the
deadline. The task itself ends soon after: redis-py's socket timeout closes a connection that does not answer.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoScriptError, RedisError, ResponseError

from ampd.errors import ConfigError, SetupError, StateError

Arg = str | bytes | int | float
_LUA = Path(__file__).parent / "lua"
_CONNECT_S = 5.0
_SILENT_S = 2.0  # a connection that owes a reply for this long is closed
_GRACE_S = 0.001


def load_scripts() -> dict[str, tuple[str, str]]:
    """Name -> (SHA-1 digest, text) of every script, the common part put before each."""
    common = (_LUA / "common.lua").read_text()
    scripts = {}
    for path in sorted(_LUA.glob("*.lua")):
        if path.name != "common.lua":
            text = f"{common}\n{path.read_text()}"
            scripts[path.stem] = (hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), text)
    return scripts


class RedisClient:
    """Redis commands and scripts with a deadline. Every method raises StateError when Redis does not answer in time or refuses."""

    def __init__(self, url: str, password: str | None, deadline_s: float, pool_size: int) -> None:
        self.where = _without_password(url)
        self._deadline_s = deadline_s
        self._scripts = load_scripts()
        self._tasks: set[asyncio.Task[Any]] = set()
        options: dict[str, Any] = {"password": password} if password else {}
        try:
            pool = aioredis.BlockingConnectionPool.from_url(
                url,
                max_connections=pool_size,
                timeout=deadline_s,
                socket_timeout=_SILENT_S,
                socket_connect_timeout=_CONNECT_S,
                retry=Retry(NoBackoff(), 0),
                driver_info=None,
                protocol=2,
                **options,
            )
        except ValueError as e:
            raise ConfigError(f"state.url {self.where}: {e}; use redis://, rediss:// or unix://") from None
        self._redis: Any = aioredis.Redis.from_pool(pool)  # redis-py types its commands for sync and async at once

    async def connect(self, key: str, value: str) -> str:
        """Check address, password and rights, and load the scripts. Returns what `key` holds: `value` if it held nothing.

        Raises SetupError in one line. The deadline of calls does not apply: a process that starts may be slow.
        """
        try:
            for _, text in self._scripts.values():
                await self._wait(self._redis.script_load(text), _CONNECT_S)
            await self._wait(self._redis.execute_command("SETNX", key, value), _CONNECT_S)
            found: bytes = await self._wait(self._redis.execute_command("GET", key), _CONNECT_S)
        except StateError as e:
            raise SetupError(self._advice(e)) from None
        return found.decode(errors="replace")

    def _advice(self, error: StateError) -> str:
        cause = error.__cause__
        refused = ("NOAUTH", "WRONGPASS", "invalid username-password pair")
        if isinstance(cause, AuthenticationError) or any(text in str(cause) for text in refused):
            return (
                f"state.url {self.where}: Redis refused the password ({cause}); state.password_env names the variable that holds it"
            )
        if isinstance(cause, ResponseError):
            return f"state.url {self.where}: Redis refused a command ({cause}); docs/state.md lists the rights that ampd needs"
        return f"state.url {self.where}: cannot reach Redis ({cause or error}); is it running, and is the address right?"

    async def close(self) -> None:
        """Wait for the commands under way, then give back the connections."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CONNECT_S)
        await self._redis.aclose()
        await self._redis.connection_pool.disconnect()

    async def run(self, script: str, keys: Sequence[str], args: Sequence[Arg], late: Callable[[Any], None] | None = None) -> Any:
        """Run a script. `late` gets the reply if the caller was cancelled or gave up before it came."""
        return await self._wait(self._evaluate(script, keys, args), self._deadline_s, late)

    async def command(self, *args: Arg) -> Any:
        """Run a plain command."""
        return await self._wait(self._redis.execute_command(*args), self._deadline_s)

    async def _evaluate(self, script: str, keys: Sequence[str], args: Sequence[Arg]) -> Any:
        digest, text = self._scripts[script]
        try:
            return await self._redis.execute_command("EVALSHA", digest, len(keys), *keys, *args)
        except NoScriptError:
            return await self._redis.execute_command("EVAL", text, len(keys), *keys, *args)

    async def _wait(self, call: Coroutine[Any, Any, Any], deadline_s: float, late: Callable[[Any], None] | None = None) -> Any:
        task = asyncio.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            done, _ = await asyncio.wait((task,), timeout=deadline_s)
            if not done:
                # After a stall of this process's own loop the reply may be here, unread.
                await asyncio.wait((task,), timeout=_GRACE_S)
        except asyncio.CancelledError:
            task.add_done_callback(lambda t: _settle(t, late))
            raise
        if not task.done():
            task.add_done_callback(lambda t: _settle(t, late))
            raise StateError(f"Redis at {self.where} did not answer within {deadline_s * 1000:.0f} ms")
        try:
            return task.result()
        except (RedisError, OSError) as e:
            raise StateError(f"Redis at {self.where}: {e or type(e).__name__}") from e


def _settle(task: asyncio.Task[Any], late: Callable[[Any], None] | None) -> None:
    """Take the result of a task that nobody waits for any more."""
    if not task.cancelled() and task.exception() is None and late is not None:
        late(task.result())


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError as e:
        raise ConfigError(f"state.url: {e}; use redis://, rediss:// or unix://") from None
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
