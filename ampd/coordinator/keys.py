"""Which session a request belongs to. Only hashes of what clients send leave this module.

Looked for in this order:

1. `sessions.key_sources`, dotted paths into the preprocessed request. The default, `agent_context.session_id`, is where Dynamo puts
   the session headers it understands. `annotations.NAME` reads the client's `nvext.annotations` entry `NAME:value`.
2. If `sessions.derive`: the conversation's opening, that is everything up to the end of the first user message. Chat templates
   close every message with an end-of-turn token, which is among the request's `eos_token_ids`; a prompt with an even number of
   closed messages starts with a system message, one with an odd number does not. So the opening is the first two closed messages
   or the first one, and stays the same in every later round.

A derived key has limits, and answers flag it: conversations with equal openings share a key (their ledger keeps them apart, so
that costs speed, never wrong KV); a turn that adds an odd number of messages, like two tool results at once, starts a new
session; prompts without end-of-turn tokens have no key. A request without a key is served as a single round.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from ampd.errors import RequestError
from ampd.ledger import build

_MAX_ID_BYTES = 256  # the bound of Dynamo's own session affinity


@dataclass(frozen=True, slots=True)
class SessionKey:
    """A session's identity: 128-bit hashes in hex, keyed by graph, distinct for each tenant."""

    id: str
    derived: bool = False
    parent: str | None = None


class SessionKeys:
    """Finds session keys. `graph` separates deployments that share one Redis."""

    def __init__(self, graph: str, sources: Sequence[str], derive: bool) -> None:
        self._graph, self._derive = graph.encode()[:64], derive
        self._sources = [source.split(".") for source in sources]

    def find(self, raw: Mapping[str, Any], token_ids: Sequence[int], tenant: str | None) -> SessionKey | None:
        """The request's session, None when it has none. Raises RequestError for an id that is too long."""
        for source in self._sources:
            if given := _lookup(raw, source):
                parent = _lookup(raw, ["agent_context", "parent_session_id"])
                return SessionKey(self._hash("given", tenant, given), parent=parent and self._hash("given", tenant, parent))
        if self._derive and (opening := _opening(token_ids, raw.get("eos_token_ids") or ())):
            return SessionKey(self._hash("derived", tenant, build(opening, len(opening)).hex()), derived=True)
        return None

    def _hash(self, kind: str, tenant: str | None, id: str) -> str:
        digest = blake2b(key=self._graph, digest_size=16)
        for part in (kind, tenant or "", id):
            data = part.encode()
            digest.update(len(data).to_bytes(4, "little") + data)  # lengths keep ("a", "bc") and ("ab", "c") apart
        return digest.hexdigest()


def _lookup(raw: Mapping[str, Any], path: Sequence[str]) -> str | None:
    if path[0] == "annotations":
        value: Any = _annotation(raw.get("annotations") or (), ".".join(path[1:]))
    else:
        value = raw
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(value, str | int):
        return None
    text = str(value).strip()
    if len(text.encode()) > _MAX_ID_BYTES:
        raise RequestError(f"{'.'.join(path)} has {len(text.encode())} bytes, a session id has at most {_MAX_ID_BYTES}")
    return text or None


def _annotation(annotations: Iterable[Any], name: str) -> str | None:
    prefix = f"{name}:"
    return next((a[len(prefix) :] for a in annotations if isinstance(a, str) and a.startswith(prefix)), None)


def _opening(token_ids: Sequence[int], eos_token_ids: Iterable[int]) -> Sequence[int]:
    """The leading tokens up to the end of the first user message; empty when the prompt does not show it."""
    ends = set(eos_token_ids)
    closed = sum(token_ids.count(end) for end in ends)
    messages = 2 if closed % 2 == 0 else 1
    if closed < messages or not ends:
        return ()
    seen = 0
    for i, token in enumerate(token_ids):
        if token in ends:
            seen += 1
            if seen == messages:
                return token_ids[: i + 1]
    return ()
