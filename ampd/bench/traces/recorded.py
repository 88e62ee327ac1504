"""What the loaders of other tools' traces share: reading JSON lines, and gaps out of start times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from ampd.bench.lengths import check_rounds, read_lines
from ampd.errors import ConfigError
from ampd.simulator.types import TraceRound, TraceSession

# Seconds for each token of an answer, where a recording says when requests began and not when they ended. The answer's time is
# taken off the time between two requests: what is left is the gap. Assumed: 30 ms is a usual ITL of an interactive service.
TOKEN_S = 0.03

_Row = TypeVar("_Row", bound=msgspec.Struct)


def decode_lines(path: Path, row: type[_Row], expected: str) -> Iterator[tuple[str, _Row]]:
    """Each line with its place, `file:line`. Raises ConfigError for a line that is none of `row`, and for no lines."""
    decoder = msgspec.json.Decoder(row, strict=False)
    number = 0
    for number, line in enumerate(read_lines(path), start=1):
        try:
            decoded = decoder.decode(line)
        except msgspec.MsgspecError as e:
            raise ConfigError(f"{path}:{number}: {e}; expected {expected}") from None
        yield f"{path}:{number}", decoded
    if not number:
        raise ConfigError(f"{path}: no lines; expected {expected}")


def gap_after(started_s: float, output: int, now_s: float) -> float:
    """From the estimated end of a round that began at `started_s` to the arrival at `now_s`, never below 0."""
    return round(max(0.0, now_s - started_s - output * TOKEN_S), 3)


def shared_blocks(one: Sequence[int], other: Sequence[int]) -> int:
    """Leading hash ids that both have."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return min(len(one), len(other))


def make_session(place: str, name: str, rounds: Sequence[TraceRound], arrives_s: float) -> TraceSession:
    """Raises ConfigError, naming `place`, for lengths that no session can have."""
    check_rounds(place, rounds)
    return TraceSession(name, tuple(rounds), arrives_s)
