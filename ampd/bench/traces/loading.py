"""Load a trace of any known format, recognised by the fields of its first line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import msgspec

from ampd.bench.lengths import read_lines
from ampd.bench.traces.aiperf import load_aiperf
from ampd.bench.traces.mooncake import load_mooncake
from ampd.bench.traces.rows import load_rows
from ampd.bench.traces.weka import load_weka
from ampd.errors import ConfigError
from ampd.simulator.types import TraceSession

Format = Literal["rows", "mooncake", "aiperf", "weka"]
_LOADERS: dict[Format, Callable[[Path], list[TraceSession]]] = {
    "rows": load_rows, "mooncake": load_mooncake, "aiperf": load_aiperf, "weka": load_weka,
}  # fmt: skip


def load_trace(path: str | Path, format: Format | Literal["auto"] = "auto") -> list[TraceSession]:
    """The sessions of a file (or, of Weka's, a folder) in order of arrival; `recognise` says which format "auto" is.

    Raises ConfigError in one line: file, line, field, value and fix.
    """
    path = Path(path)
    if format != "auto" and format not in _LOADERS:
        raise ConfigError(f"format: '{format}' is unknown; choose one of auto, {', '.join(get_args(Format))}")
    return _LOADERS[recognise(path) if format == "auto" else format](path)


def recognise(path: str | Path) -> Format:
    """The format of a trace. Raises ConfigError if it is none, or cannot be read."""
    path = Path(path)
    if path.is_dir():
        return "weka"
    lines = read_lines(path)
    if not lines:
        raise ConfigError(f"{path}: no sessions; give a file of sessions")
    fields = _fields(lines[0]) or _fields("\n".join(lines))  # of a line, or of an object over several lines
    if "rounds" in fields:
        return "rows"
    if "requests" in fields:
        return "weka"
    if "turns" in fields or ("session_id" in fields and {"input_length", "text_input"} & fields):
        return "aiperf"
    if {"input_length", "hash_ids"} & fields:
        return "mooncake"
    found = ", ".join(sorted(fields)) or "no JSON object"
    raise ConfigError(
        f"{path}:1: {found}; expected a session of ampd's (rounds), Mooncake's (timestamp, input_length, hash_ids), "
        f"AIPerf's (session_id, turns) or Weka's (requests); or say which with the format"
    )


def _fields(text: str) -> set[str]:
    try:
        found = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return set()
    return set(found)
