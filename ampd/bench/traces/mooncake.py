"""Mooncake's traces: requests with the hashes of their blocks of 512 tokens, out of which sessions are pieced together.

Format: github.com/kvcache-ai/Mooncake, FAST25-release/traces. JSONL:
`{"timestamp": ms, "input_length", "output_length", "hash_ids"}`. An id stands for a block *and all before it*, so that two requests
share exactly their leading equal ids.

A request continues a session when its ids begin with all full blocks of the session's last request and its prompt is longer; of
several such sessions, the one that shares most, then the latest. Blocks that more than `_FORKS` different blocks follow are a
common preamble and tell no session from another. A request that continues none begins a session: a second branch too, a repeated
prompt, and a rewritten context.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec

from ampd.bench.traces.recorded import decode_lines, gap_after, make_session, shared_blocks
from ampd.bench.traces.rows import check_arrival
from ampd.errors import ConfigError
from ampd.simulator.types import TraceRound, TraceSession

_EXPECTED = "{'timestamp': ms, 'input_length', 'output_length', 'hash_ids'}"
_FORKS = 8  # branches that one conversation may have at one place: edits and repeated answers


class _Request(msgspec.Struct, frozen=True):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


@dataclass(slots=True)
class _Chain:
    """A session so far; `place` is where its last request stands."""

    place: str
    last: _Request
    arrives_s: float
    rounds: list[TraceRound] = field(default_factory=list)


def load_mooncake(path: Path, block_size: int = 512) -> list[TraceSession]:
    """Sessions in order of arrival. A round's history are the blocks that it shares with the round before, so not the answer.

    Raises ConfigError for times out of order, lengths below 1, or ids that are too few or too many for the prompt.
    """
    requests = list(_read(path, block_size))
    common = _preambles([request for _, request in requests])
    chains: list[_Chain] = []
    open_at: dict[int, list[_Chain]] = defaultdict(list)  # sessions by the last full block of their last request
    for place, request in requests:
        chain = _find(open_at, request)
        if chain is None:
            chain = _Chain(place, request, request.timestamp / 1000)
            chains.append(chain)
            chain.rounds.append(TraceRound(request.input_length, 0, request.output_length))
        else:
            chain.rounds.append(_next_round(chain.last, request, block_size))
            chain.place, chain.last = place, request
        full = request.input_length // block_size
        if full and request.hash_ids[full - 1] not in common:
            open_at[request.hash_ids[full - 1]].append(chain)
    return [make_session(chain.place, f"{path.stem}-{i}", chain.rounds, chain.arrives_s) for i, chain in enumerate(chains)]


def _read(path: Path, block_size: int) -> list[tuple[str, _Request]]:
    read = []
    before = None
    for place, request in decode_lines(path, _Request, _EXPECTED):
        check_arrival(place, "timestamp", request.timestamp, before, before is None)
        before = request.timestamp
        for name, tokens in (("input_length", request.input_length), ("output_length", request.output_length)):
            if tokens < 1:
                raise ConfigError(f"{place}: {name}: {tokens}; at least 1 token is needed")
        blocks = -(-request.input_length // block_size)
        if len(request.hash_ids) != blocks:
            raise ConfigError(
                f"{place}: hash_ids: {len(request.hash_ids)} of them; a prompt of {request.input_length} tokens has {blocks} "
                f"blocks of {block_size}; give one id a block, or another block size"
            )
        read.append((place, request))
    return read


def _preambles(requests: Sequence[_Request]) -> set[int]:
    """Blocks that too many different ones follow."""
    followers: dict[int, set[int]] = defaultdict(set)
    for request in requests:
        for block, after in pairwise(request.hash_ids):
            if len(followers[block]) <= _FORKS:
                followers[block].add(after)
    return {block for block, after in followers.items() if len(after) > _FORKS}


def _find(open_at: dict[int, list[_Chain]], request: _Request) -> _Chain | None:
    """The session that the request continues, no longer open at its block."""
    for block in reversed(request.hash_ids):
        waiting = open_at.get(block, [])
        for i in range(len(waiting) - 1, -1, -1):
            if waiting[i].last.input_length < request.input_length:
                return waiting.pop(i)
    return None


def _next_round(last: _Request, request: _Request, block_size: int) -> TraceRound:
    shared = shared_blocks(last.hash_ids, request.hash_ids) * block_size
    gap_s = gap_after(last.timestamp / 1000, last.output_length, request.timestamp / 1000)
    return TraceRound(request.input_length, min(shared, last.input_length), request.output_length, gap_s)
