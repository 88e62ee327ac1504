"""AIPerf's multi-turn inputs, whose turns add to the context: `multi_turn`, and `mooncake_trace` with session ids.

Formats: github.com/ai-dynamo/aiperf, src/aiperf/dataset/loader/models.py. JSONL. Either a line a session,
`{"session_id", "turns": [{"text" or "texts" or "input_length", "output_length", "delay" or "timestamp": ms, "role"}]}`, or a line a
turn, `{"session_id", "input_length" or "text_input", "output_length", "delay" or "timestamp"}`. Lines of one session id are one
session.

A turn's input is its new tokens; its prompt is everything before and them. A turn with text and no length has a quarter as many
tokens as characters, a usual estimate for English. A leading turn of the role "system" belongs to the first prompt, as in AIPerf.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ampd.bench.traces.recorded import decode_lines, gap_after, make_session
from ampd.errors import ConfigError
from ampd.simulator.types import TraceRound, TraceSession

_EXPECTED = (
    "{'session_id', 'turns': [{'input_length' or 'text', 'output_length', 'delay': ms}]}, or such a turn with its 'session_id'"
)
_CHARS_PER_TOKEN = 4

_Text = str | dict[str, object]


class _Turn(msgspec.Struct, frozen=True):
    input_length: int | None = None
    text: str | None = None
    texts: list[_Text] = []
    text_input: str | None = None
    output_length: int | None = None
    delay: float | None = None
    timestamp: float | None = None
    role: str | None = None


class _Line(_Turn, frozen=True):
    session_id: str | None = None
    turns: list[_Turn] | None = None


def load_aiperf(path: Path) -> list[TraceSession]:
    """Sessions in order of arrival, which is their first turn's timestamp; 0 without.

    Raises ConfigError for missing or zero lengths, negative delays, times out of order, or times that some sessions lack.
    """
    sessions: dict[str, list[tuple[str, _Turn]]] = {}
    for i, (place, line) in enumerate(decode_lines(path, _Line, _EXPECTED), start=1):
        name = line.session_id or f"{path.stem}-{i}"
        turns = [(place, line)] if line.turns is None else [(f"{place}: turns[{k}]", t) for k, t in enumerate(line.turns)]
        if not turns:
            raise ConfigError(f"{place}: turns: empty; a session needs turns")
        sessions.setdefault(name, []).extend(turns)
    starts = [_start_s(turns) for turns in sessions.values()]
    made = [_session(name, turns, start or 0.0) for (name, turns), start in zip(sessions.items(), starts, strict=True)]
    if None in starts and any(start is not None for start in starts):
        place = list(sessions.values())[starts.index(None)][0][0]
        raise ConfigError(f"{place}: timestamp: missing; give all sessions one, or none of them")
    return sorted(made, key=lambda session: session.arrives_s)


def _start_s(turns: Sequence[tuple[str, _Turn]]) -> float | None:
    first = turns[0][1].timestamp
    return None if first is None else first / 1000


def _session(name: str, turns: Sequence[tuple[str, _Turn]], arrives_s: float) -> TraceSession:
    rounds: list[TraceRound] = []
    place, preamble, left, before = turns[0][0], 0, 0, None
    for i, (place, turn) in enumerate(turns):
        new = _new_tokens(place, turn)
        if i == 0 and turn.role == "system" and turn.output_length is None and len(turns) > 1:
            preamble = new
            continue
        if turn.output_length is None or turn.output_length < 1:
            raise ConfigError(
                f"{place}: output_length: {turn.output_length or 'missing or 0'}; give the answer's tokens, at least 1"
            )
        prompt = left + preamble + new
        gap_s = _gap_s(place, before, turn) if rounds else 0.0
        rounds.append(TraceRound(prompt, left, turn.output_length, gap_s))
        preamble, left, before = 0, prompt + turn.output_length, turn
    return make_session(place, name, rounds, arrives_s)


def _new_tokens(place: str, turn: _Turn) -> int:
    if turn.input_length is not None:
        if turn.input_length < 1:
            raise ConfigError(f"{place}: input_length: {turn.input_length}; a turn adds at least 1 token")
        return turn.input_length
    texts = [turn.text, turn.text_input, *(_content(text) for text in turn.texts)]
    chars = sum(len(text) for text in texts if text)
    if not chars:
        raise ConfigError(f"{place}: input_length: missing, and no text; give the turn's new tokens, or its text")
    return max(1, round(chars / _CHARS_PER_TOKEN))


def _content(text: _Text) -> str:
    if isinstance(text, str):
        return text
    contents = text.get("contents", [])
    return "".join(part for part in contents if isinstance(part, str)) if isinstance(contents, list) else ""


def _gap_s(place: str, before: _Turn | None, turn: _Turn) -> float:
    if turn.delay is not None:
        if turn.delay < 0:
            raise ConfigError(f"{place}: delay: {turn.delay}; give milliseconds, 0 or more")
        return turn.delay / 1000
    if turn.timestamp is None or before is None or before.timestamp is None:
        return 0.0
    if turn.timestamp < before.timestamp:
        raise ConfigError(f"{place}: timestamp: {turn.timestamp} comes after {before.timestamp}; sort a session's turns by time")
    return gap_after(before.timestamp / 1000, before.output_length or 0, turn.timestamp / 1000)
