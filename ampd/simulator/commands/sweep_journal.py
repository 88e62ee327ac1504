"""What a sweep has computed so far, so that one that was killed, or is asked for more, computes nothing twice.

A file of JSON lines: each the key of a point and its metrics, written in one call as soon as they are known. The key is a digest of
all that decides the metrics, the simulator's own code included, so one journal can serve any sweeps. A line that a kill cut short
is dropped at the next start. The file is locked while a sweep uses it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ampd.errors import ConfigError, SetupError

Metrics = dict[str, float | int | None]
_BEGINNING = b'{"key":"'


class Done(msgspec.Struct, frozen=True):
    """A line."""

    key: str
    metrics: Metrics


class SweepJournal:
    """An open journal; `done` are the metrics by key."""

    def __init__(self, descriptor: int, done: dict[str, Metrics]) -> None:
        self._descriptor = descriptor
        self.done = done

    def add(self, key: str, metrics: Metrics) -> None:
        """Write a point's metrics down."""
        os.write(self._descriptor, msgspec.json.encode(Done(key, metrics)) + b"\n")
        self.done[key] = metrics


def sweep_journal_path(out: Path) -> Path:
    """Where the points of a sweep that writes `out` are kept."""
    return out.with_name(f"{out.name}.journal")


@contextmanager
def open_sweep_journal(path: Path, fresh: bool = False) -> Iterator[SweepJournal]:
    """Go on with a journal, or begin one. `fresh` forgets what is there.

    Raises ConfigError when the file is no journal or its folder does not exist, SetupError when another sweep uses it.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as e:
        raise ConfigError(f"{path}: cannot be written: {e.strerror}; choose another --out") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupError(f"{path}: another `ampd sim sweep` is writing it; wait for its end, or choose another --out") from None
        if fresh:
            os.ftruncate(descriptor, 0)
        yield SweepJournal(descriptor, _recover(path, descriptor))
    finally:
        os.close(descriptor)


def _recover(path: Path, descriptor: int) -> dict[str, Metrics]:
    """The whole lines; what follows the last one is cut off."""
    raw = path.read_bytes()
    whole = raw[: raw.rfind(b"\n") + 1]
    try:
        if not (raw.startswith(_BEGINNING) or _BEGINNING.startswith(raw)):
            raise msgspec.DecodeError("its first line is another")
        lines = [msgspec.json.decode(line, type=Done) for line in whole.splitlines()]
    except msgspec.DecodeError as e:
        raise ConfigError(
            f"{path}: not the journal of an `ampd sim sweep` ({e}); remove it, use --fresh, or choose another --out"
        ) from None
    os.ftruncate(descriptor, len(whole))
    return {line.key: line.metrics for line in lines}
