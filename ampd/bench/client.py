"""One round over HTTP: POST it, read the event stream to its end.

A failed round is a result with `error`, never an exception: a load generator must count failures, not die of them.
"""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Literal

import aiohttp
import msgspec

from ampd.bench.rounds import RoundRequest, RoundResult
from ampd.bench.stream import AnswerReader, events, message

Dialect = Literal["dynamo", "vllm"]  # how token ids are asked for: Dynamo's nvext, or vLLM's own field

_LINE_LIMIT = 8 * 2**20  # bytes of one event; the default 64 KiB is too small for long answers


class Client:
    """An OpenAI API client for one served model. Use as an async context manager."""

    def __init__(self, url: str, model: str, *, dialect: Dialect = "dynamo", timeout_s: float = 600.0) -> None:
        self.url, self.model, self.dialect = url.rstrip("/"), model, dialect
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Client:
        self._http = aiohttp.ClientSession(
            timeout=self._timeout,
            read_bufsize=_LINE_LIMIT,
            connector=aiohttp.TCPConnector(limit=0),  # whoever calls bounds the rounds under way
            json_serialize=lambda body: msgspec.json.encode(body).decode(),  # ten times faster on long prompts of token ids
        )
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._http is not None:
            await self._http.close()

    async def models(self) -> list[str]:
        """Names the server serves. Raises aiohttp.ClientError or TimeoutError when it does not answer."""
        assert self._http is not None, "use `async with Client(...)`"
        async with self._http.get(f"{self.url}/v1/models", timeout=aiohttp.ClientTimeout(total=10)) as answer:
            answer.raise_for_status()
            return [m["id"] for m in (await answer.json())["data"]]

    async def send(self, request: RoundRequest) -> RoundResult:
        """Play one round to its end."""
        assert self._http is not None, "use `async with Client(...)`"
        route = "chat/completions" if request.messages is not None else "completions"
        started = time.perf_counter()
        reader = AnswerReader(RoundResult(session=request.session, number=request.number), started)
        try:
            async with self._http.post(f"{self.url}/v1/{route}", json=self._body(request), headers=_headers(request)) as answer:
                if answer.status != 200:
                    reader.result.error = f"HTTP {answer.status}: {message(await answer.text())}"
                else:
                    async for name, data in events(answer.content):
                        reader.take(name, data)
                    reader.close()
        except TimeoutError:
            reader.result.error = f"no end within {self._timeout.total:g} s"
        except (aiohttp.ClientError, ValueError) as e:
            reader.result.error = f"{type(e).__name__}: {e}"
        reader.result.total_s = time.perf_counter() - started
        return reader.result

    def _body(self, request: RoundRequest) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.messages is not None:
            body["messages"] = request.messages
        else:
            body["prompt"] = request.prompt
        if self.dialect == "dynamo":
            body["nvext"] = {"extra_fields": ["engine_data", "completion_token_ids"]}
        else:
            body["return_token_ids"] = True
        return {**body, **request.extra}


def _headers(request: RoundRequest) -> dict[str, str]:
    if request.session is None:
        return {}
    final = {"x-dynamo-session-final": "true"} if request.final else {}
    return {"x-dynamo-session-id": request.session, **final}
