"""Agentic traces of Weka's kv-cache-tester: one JSON object a session, with block hashes, think times and sub-agents.

Formats: github.com/callanjfox/kv-cache-tester, docs/trace_replay_tester.md; github.com/ai-dynamo/aiperf,
src/aiperf/dataset/loader/weka_trace_models.py. `{"id", "block_size", "requests": [{"t": s, "type": "n" or "s", "in", "out",
"hash_ids", "api_time": s, "think_time": s, "stop"}, {"t", "type": "subagent", "agent_id", "subagent_type", "requests"}]}`. A file
holds one object, or one a line (the published corpora); a folder holds files.

A sub-agent is a session of its own that arrives when it was spawned; while it works its parent waits, which is part of the parent's
gap. History is the shared leading blocks of two requests in a row, without the answer. An answer of 0 tokens counts as 1, as in
AIPerf.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ampd.bench.lengths import read_lines
from ampd.bench.traces.recorded import gap_after, make_session, shared_blocks
from ampd.errors import ConfigError
from ampd.simulator.types import TraceRound, TraceSession

_EXPECTED = "{'id', 'block_size', 'requests': [{'t', 'type', 'in', 'out', 'hash_ids'}]}"
_AFTER = {"tool_use": "tool", "end_turn": "user"}  # what runs in the gap after a request that stopped so


class _Request(msgspec.Struct, frozen=True, kw_only=True):
    t: float
    type: str = "n"
    prompt: int = msgspec.field(name="in", default=0)
    output: int = msgspec.field(name="out", default=0)
    hash_ids: list[int] = []
    api_time: float | None = None
    think_time: float | None = None
    stop: str = ""
    agent_id: str = ""
    subagent_type: str = ""
    requests: list[_Request] = []


class _Trace(msgspec.Struct, frozen=True):
    id: str
    block_size: int
    requests: list[_Request]


def load_weka(path: Path) -> list[TraceSession]:
    """Sessions, each beginning at 0 s: the recordings do not say when; sub-agents arrive as much later as they were spawned.

    Raises ConfigError for prompts without tokens, times out of order, and think times or block sizes that cannot be.
    """
    made = [session for place, trace in _read(path) for session in _walk(place, trace.id, trace.requests, 0.0, trace.block_size)]
    if not made:
        raise ConfigError(f"{path}: no sessions; expected files *.json of {_EXPECTED}")
    return sorted(made, key=lambda session: session.arrives_s)


def _read(path: Path) -> Iterator[tuple[str, _Trace]]:
    decode = msgspec.json.Decoder(_Trace, strict=False).decode
    for file in sorted(path.glob("*.json")) if path.is_dir() else [path]:
        lines = read_lines(file)
        # An object over several lines, or one on each.
        pieces = [(str(file), "\n".join(lines))] if _is_one_object(lines) else [(f"{file}:{n}", s) for n, s in enumerate(lines, 1)]
        for place, text in pieces:
            try:
                trace = decode(text)
            except msgspec.MsgspecError as e:
                raise ConfigError(f"{place}: {e}; expected {_EXPECTED}") from None
            if trace.block_size < 1:
                raise ConfigError(f"{place}: block_size: {trace.block_size}; give the tokens of a block, at least 1")
            yield place, trace


def _is_one_object(lines: Sequence[str]) -> bool:
    return len(lines) == 1 or not (lines and lines[0].rstrip().endswith("}"))


def _walk(place: str, name: str, requests: Sequence[_Request], arrives_s: float, block_size: int) -> Iterator[TraceSession]:
    """The agent's own session, and each sub-agent's, nested ones too."""
    rounds: list[TraceRound] = []
    before: _Request | None = None
    spawned = ""
    first_s = requests[0].t if requests else 0.0
    for i, request in enumerate(requests):
        here = f"{place}: {name}: requests[{i}]"
        if request.type == "subagent":
            spawned = request.subagent_type or "subagent"
            yield from _walk(
                place, f"{name}/{request.agent_id or i}", request.requests, arrives_s + request.t - first_s, block_size
            )
            continue
        _check(here, before, request)
        rounds.append(_round(before, request, spawned, block_size))
        before, spawned = request, ""
    if rounds:
        yield make_session(f"{place}: {name}", name, rounds, arrives_s)


def _check(here: str, before: _Request | None, request: _Request) -> None:
    if request.prompt < 1:
        raise ConfigError(f"{here}.in: {request.prompt}; a prompt has at least 1 token")
    if before is not None and request.t < before.t:
        raise ConfigError(f"{here}.t: {request.t} comes after {before.t}; sort the requests by t")
    for field, seconds in (("think_time", request.think_time), ("api_time", request.api_time)):
        if seconds is not None and seconds < 0:
            raise ConfigError(f"{here}.{field}: {seconds}; give seconds, 0 or more")


def _round(before: _Request | None, request: _Request, spawned: str, block_size: int) -> TraceRound:
    output = max(1, request.output)
    if before is None:
        return TraceRound(request.prompt, 0, output)
    if request.hash_ids and before.hash_ids:
        # The last token is computed in any case: recorded pairs of equal requests share all blocks.
        shared = min(shared_blocks(before.hash_ids, request.hash_ids) * block_size, before.prompt, request.prompt - 1)
    else:
        shared = min(before.prompt + max(1, before.output), request.prompt - 1)  # taken to continue the round before
    return TraceRound(request.prompt, shared, output, _gap_s(before, request), spawned or _AFTER.get(before.stop, ""))


def _gap_s(before: _Request, request: _Request) -> float:
    """As recorded where it is: start to start less the server's time, else the client's think time; else estimated."""
    if before.api_time is not None:
        return round(max(0.0, request.t - before.t - before.api_time), 3)
    if request.think_time is not None:
        return request.think_time
    return gap_after(before.t, max(1, before.output), request.t)
