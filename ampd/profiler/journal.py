"""The samples of a run that is under way, so that one that was interrupted goes on where it was.

A file of JSON lines beside the profile: a header that says what is measured, then one line for each sample, written in one call
as soon as it is known. A line that a kill cut short is dropped at the next start. The file is locked while a run uses it.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from ampd.errors import ProfileError, SetupError
from ampd.profiler.identity import Identity
from ampd.profiler.spots import Spot
from ampd.workers.engines.base import EngineInfo

FORMAT = "ampd-profile-samples"
VERSION = 1
_BEGINNING = f'{{"format":"{FORMAT}"'.encode()
_STATE_EVERY_S = 5.0


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line."""

    format: str = FORMAT
    version: int = VERSION
    identity: Identity


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """The spot's name, its seconds, when it was taken (unix seconds), and the process that took it."""

    spot: str
    seconds: float
    at: float
    pid: int


class State(msgspec.Struct, frozen=True, tag="state"):
    """The engines of one process, and the noise it has seen so far; its last one holds."""

    prefill: EngineInfo
    decode: EngineInfo
    noise: list[str]
    at: float
    pid: int


class Journal:
    """An open journal. `samples` are those of earlier runs, `states` the last state of each."""

    def __init__(self, path: Path, descriptor: int, lines: list[Sample | State]) -> None:
        self.path = path
        self._descriptor = descriptor
        self._stated_at = float("-inf")
        self.samples: dict[Spot, list[float]] = defaultdict(list)
        self.states: dict[int, State] = {}
        for line in lines:
            if isinstance(line, Sample):
                self.samples[Spot.parse(line.spot)].append(line.seconds)
            else:
                self.states[line.pid] = line

    def add(self, spot: Spot, seconds: float) -> None:
        """Write a sample down."""
        self._write(Sample(spot.name, seconds, round(time.time(), 3), os.getpid()))

    def state(self, prefill: EngineInfo, decode: EngineInfo, noise: Callable[[], list[str]], *, now: bool = False) -> None:
        """Write this run's state down, unless that was done within the last seconds."""
        if now or time.monotonic() - self._stated_at >= _STATE_EVERY_S:
            self._stated_at = time.monotonic()
            state = State(prefill, decode, noise(), round(time.time(), 3), os.getpid())
            self.states[state.pid] = state
            self._write(state)

    def _write(self, line: Sample | State) -> None:
        os.write(self._descriptor, msgspec.json.encode(line) + b"\n")

    def remove(self) -> None:
        """The run has ended and its profile is written."""
        self.path.unlink(missing_ok=True)


def journal_path(out: Path) -> Path:
    """Where the samples of a run that writes `out` are kept."""
    return out.with_name(f"{out.name}.partial")


def kept_samples(path: Path) -> int:
    """How many samples an earlier run has left there."""
    try:
        return path.read_bytes().count(b'{"type":"sample"')
    except FileNotFoundError:
        return 0


@contextmanager
def open_journal(path: Path, identity: Identity, fresh: bool) -> Iterator[Journal]:
    """Go on with a journal, or begin one. `fresh` forgets what is there.

    Raises ProfileError when it is of other engines or cannot be read, SetupError when another run uses it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupError(f"{path}: another `ampd profile` is writing it; wait for its end, or choose another --out") from None
        if fresh:
            os.ftruncate(descriptor, 0)
        lines = _recover(path, descriptor, identity)
        yield Journal(path, descriptor, lines)
    finally:
        os.close(descriptor)


def _recover(path: Path, descriptor: int, identity: Identity) -> list[Sample | State]:
    """The samples in the file, which ends with a whole line afterwards."""
    raw = path.read_bytes()
    if not (raw.startswith(_BEGINNING) or _BEGINNING.startswith(raw)):
        raise ProfileError(f"{path}: not the samples of an `ampd profile`; remove it, or use --fresh")
    whole = raw[: raw.rfind(b"\n") + 1]
    if not whole:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, msgspec.json.encode(Header(identity=identity)) + b"\n")
        return []
    first, *rest = whole.splitlines()
    try:
        header = msgspec.json.decode(first, type=Header)
        if header.version != VERSION:
            raise ProfileError(f"{path}: version {header.version}, this ampd reads {VERSION}; remove it, or use --fresh")
        lines = msgspec.json.decode(b"[" + b",".join(rest) + b"]", type=list[Sample | State])
    except msgspec.DecodeError as e:
        raise ProfileError(f"{path}: damaged ({e}); remove it, or use --fresh") from None
    if differences := header.identity.differences(identity):
        raise ProfileError(f"{path}: begun with {'; '.join(differences)}; remove it, use --fresh, or choose another --out")
    os.ftruncate(descriptor, len(whole))
    return lines
