"""What `make paper` has computed so far, so that one that was interrupted goes on where it was.

A file of JSON lines, one a task: the digest of all that decides its rows, and the rows. What a kill cut short is dropped.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

import ampd
from ampd.errors import ProfileError
from ampd.simulator.experiments.paper_rows import Row

_PARTS = ("bench/traces", "config", "cost_model", "policy", "simulator")


class _Line(msgspec.Struct, frozen=True):
    key: str
    rows: list[Row]


class PaperJournal:
    """`done`: rows by key."""

    def __init__(self, path: Path, fresh: bool = False) -> None:
        """Go on with the file, or begin one; `fresh` forgets what is there."""
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = b"" if fresh or not path.exists() else path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        self._path = path
        self.done: dict[str, list[Row]] = {}
        for line in whole.splitlines():
            known = msgspec.json.decode(line, type=_Line)
            self.done[known.key] = known.rows
        path.write_bytes(whole)

    def add(self, key: str, rows: list[Row]) -> None:
        """Write a task's rows down, in one call."""
        self.done[key] = rows
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(_Line(key, rows)) + b"\n")


def code_digest(profiles: Iterable[Path]) -> str:
    """Of the simulator, what it calls, and the profiles: another digest, other figures. Raises ProfileError without a profile."""
    digest = hashlib.blake2b(digest_size=16)
    home = Path(ampd.__file__).parent
    sources = [path for part in _PARTS for path in sorted((home / part).rglob("*.py")) if not path.name.startswith("report")]
    stated = sorted(profiles)
    if missing := [path for path in stated if not path.is_file()]:
        raise ProfileError(f"profile {missing[0]}: no such file; give --profiles the folder of the shipped ones, configs/profiles")
    for path in [*sources, *stated]:
        digest.update(os.fsencode(path.name) + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def task_key(code: str, *parts: object) -> str:
    """A task's key. `parts` are frozen dataclasses of plain values, whose repr says all of them."""
    return hashlib.blake2b("\n".join([code, *map(repr, parts)]).encode(), digest_size=16).hexdigest()
