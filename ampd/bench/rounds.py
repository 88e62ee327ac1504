"""One round as a client sees it: what it sends, what comes back, and what ampd says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec


class RoundFacts(msgspec.Struct, frozen=True, kw_only=True):
    """`nvext.engine_data.ampd` of an answer. Times in seconds, sizes in tokens; what is absent keeps its default."""

    path: str = "?"
    reason: str = "?"
    estimates: dict[str, float] = {}
    session: str | None = None
    derived: bool = False
    round: int = 0
    prefill_worker: int | None = None
    decode_worker: int | None = None
    prompt_tokens: int = 0
    l_hist: int = 0
    l_incr: int = 0
    rewritten: bool = False
    degraded: bool = False
    rebound: str | None = None
    ttft_s: float | None = None
    itl_s: float | None = None
    queue_s: float = 0.0
    read_s: float = 0.0
    prefill_s: float = 0.0
    history_read_tokens: int = 0  # read by the prefill worker from the decode worker
    increment_read_tokens: int = 0  # read by the decode worker from the prefill worker
    cached_tokens: int = 0
    recompute: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRequest:
    """One round to send: a raw `prompt` (text or token ids), or chat `messages`. Decoding is greedy."""

    number: int
    max_tokens: int
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    session: str | None = None
    final: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)  # further fields of the request body


@dataclass(slots=True, kw_only=True)
class RoundResult:
    """What the client saw of one round. `ttft_s` and `itl_s` are the client's own stamps, seconds."""

    session: str | None
    number: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    finish_reason: str | None = None
    ttft_s: float | None = None
    itl_s: float | None = None
    total_s: float = 0.0
    facts: RoundFacts | None = None
    error: str | None = None
