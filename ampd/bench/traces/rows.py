"""ampd's own row format, JSONL, one session a line: what `ampd trace make` writes, and what recorded lengths come in.

`{"session", "arrives_s", "rounds": [{"prompt", "history", "increment", "output", "gap_s", "tool"}]}`: tokens and seconds.
`arrives_s`, `gap_s` and `tool` may be missing; `increment` is for readers: prompt less history.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ampd.bench.lengths import LengthSession, load_sessions
from ampd.errors import ConfigError
from ampd.simulator.types import TraceRound, TraceSession


def load_rows(path: Path) -> list[TraceSession]:
    """Raises ConfigError for bad lengths, and for arrival times that some lines lack or that are out of order."""
    rows = load_sessions(path)
    _check_arrivals(path, rows)
    return [
        TraceSession(
            row.session,
            tuple(TraceRound(r.prompt, r.history, r.output, r.gap_s, r.tool) for r in row.rounds),
            row.arrives_s or 0.0,
        )
        for row in rows
    ]


def save_rows(sessions: Sequence[TraceSession], path: Path) -> None:
    """Write them so that `load_rows` gives them back. Raises ConfigError if the file cannot be written."""
    encode = msgspec.json.Encoder().encode
    try:
        path.write_bytes(b"".join(encode(_row(session)) + b"\n" for session in sessions))
    except OSError as e:
        raise ConfigError(f"{path}: cannot be written: {e.strerror}; give another file") from None


def check_arrival(place: str, field: str, time: float | None, before: float | None, first: bool) -> None:
    """Raises ConfigError if a time is missing where others have one, comes before the one above it, or is negative."""
    if time is None and before is None:
        return
    if time is None or (before is None and not first):
        raise ConfigError(f"{place}: {field}: {'missing' if time is None else time}; give all lines such a time, or none of them")
    if time < 0:
        raise ConfigError(f"{place}: {field}: {time}; times are 0 or more")
    if before is not None and time < before:
        raise ConfigError(f"{place}: {field}: {time} comes after {before}; sort the lines by {field}")


def _check_arrivals(path: Path, rows: Sequence[LengthSession]) -> None:
    before = None
    for number, row in enumerate(rows, start=1):
        check_arrival(f"{path}:{number}", "arrives_s", row.arrives_s, before, number == 1)
        before = row.arrives_s


def _row(session: TraceSession) -> dict[str, Any]:
    rounds = [
        {"prompt": r.prompt, "history": r.history, "increment": r.prompt - r.history, "output": r.output, "gap_s": r.gap_s}
        | ({"tool": r.tool} if r.tool else {})
        for r in session.rounds
    ]
    return {"session": session.name, "arrives_s": session.arrives_s, "rounds": rounds}
