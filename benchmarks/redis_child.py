"""A real redis-server of a benchmark's own, on a unix socket and a loopback port, that stores nothing on disk."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis

from ampd.errors import SetupError
from ampd.launch.preflight import find_redis_server, free_ports


@dataclass(frozen=True, slots=True)
class RedisChild:
    """Where it listens."""

    unix: str
    tcp: str


@contextmanager
def redis_child() -> Iterator[RedisChild]:
    """Run one until the block ends. Raises SetupError when there is no redis-server, or it does not start."""
    with tempfile.TemporaryDirectory(prefix="ampd-bench-") as folder:
        socket, (port,) = Path(folder) / "redis.sock", free_ports("127.0.0.1", 1)
        command = [str(find_redis_server()), "--bind", "127.0.0.1", "--port", str(port), "--unixsocket", str(socket), "--save", ""]
        child = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
        try:
            _wait(child, socket)
            yield RedisChild(f"unix://{socket}", f"redis://127.0.0.1:{port}/0")
        finally:
            child.terminate()
            child.wait()


def _wait(child: subprocess.Popen[bytes], socket: Path) -> None:
    deadline = time.monotonic() + 10
    with redis.Redis(unix_socket_path=str(socket)) as client:
        while True:
            try:
                client.ping()
                return
            except redis.ConnectionError as e:
                if child.poll() is not None or time.monotonic() > deadline:
                    raise SetupError(f"redis-server does not start: {e}") from None
                time.sleep(0.02)
