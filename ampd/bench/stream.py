"""Fold the event stream of one answer into a RoundResult, stamping the tokens as they come."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec

from ampd.bench.rounds import RoundFacts, RoundResult


class AnswerReader:
    """Folds the events of one answer into a result."""

    def __init__(self, result: RoundResult, started: float) -> None:
        self.result = result
        self._started = started
        self._first: float | None = None
        self._last = started
        self._facts: dict[str, Any] = {}
        self._done = False

    def take(self, name: str, data: str) -> None:
        if name == "error":
            self.result.error = self.result.error or message(data)
        elif data == "[DONE]":
            self._done = True
        elif data:
            self._chunk(json.loads(data))

    def _chunk(self, chunk: dict[str, Any]) -> None:
        result, nvext = self.result, chunk.get("nvext") or {}
        if "error" in chunk:
            result.error = message(json.dumps(chunk))
        tokens = list(nvext.get("completion_token_ids") or ())
        text = ""
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            text += choice.get("text") or delta.get("content") or delta.get("reasoning_content") or ""
            tokens += choice.get("token_ids") or ()
            result.finish_reason = choice.get("finish_reason") or result.finish_reason
        if text or tokens:
            self._last = time.perf_counter()
            self._first = self._first or self._last
        result.text += text
        result.token_ids += tokens
        self._facts |= (nvext.get("engine_data") or {}).get("ampd") or {}
        if usage := chunk.get("usage"):
            result.prompt_tokens = usage["prompt_tokens"]
            result.completion_tokens = usage["completion_tokens"]
            result.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    def close(self) -> None:
        """Derive the times, and see to it that an answer cut short is a failure."""
        result = self.result
        if self._first is not None:
            result.ttft_s = self._first - self._started
            if result.completion_tokens > 1:
                result.itl_s = (self._last - self._first) / (result.completion_tokens - 1)
        if self._facts:
            result.facts = msgspec.convert(self._facts, RoundFacts)
        if result.error is None and result.finish_reason == "error":
            result.error = "the engine ended the answer with an error"
        elif result.error is None and not (self._done and result.finish_reason):
            result.error = "the stream ended before the answer did"


async def events(content: aiohttp.StreamReader) -> AsyncIterator[tuple[str, str]]:
    """Server-sent events as (name, data). Dynamo puts the text of an error event into a comment, so that counts as its data."""
    name, data = "message", ""
    async for raw in content:
        line = raw.decode().rstrip("\r\n")
        if not line:
            if data or name != "message":
                yield name, data
            name, data = "message", ""
        elif line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()
        elif line.startswith(":") and name == "error":
            data += line[1:].strip()
    if data:
        yield name, data


def message(text: str) -> str:
    """The human part of an error body, on one line of at most 300 characters."""
    try:
        body = json.loads(text)
    except ValueError:
        body = text
    if isinstance(body, dict):
        inner = body.get("error", body)
        body = inner.get("message", inner) if isinstance(inner, dict) else inner
    return " ".join(str(body).split())[:300] or "no message"
