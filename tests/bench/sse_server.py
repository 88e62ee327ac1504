"""A real HTTP server that answers like an OpenAI frontend, with events written by the test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answer = Callable[[dict[str, Any]], list[str]]  # request body -> raw lines to send, each followed by a short pause


def chunk(**fields: Any) -> str:
    return f"data: {json.dumps(fields)}\n\n"


def completion(text: str, ids: list[int], finish: str | None = None, ampd: dict[str, Any] | None = None) -> str:
    nvext: dict[str, Any] = {"completion_token_ids": ids}
    if ampd is not None:
        nvext["engine_data"] = {"ampd": ampd}
    return chunk(choices=[{"text": text, "index": 0, "finish_reason": finish}], nvext=nvext)


def usage(prompt: int, completion_tokens: int, cached: int = 0) -> str:
    details = {"cached_tokens": cached}
    return chunk(
        choices=[], usage={"prompt_tokens": prompt, "completion_tokens": completion_tokens, "prompt_tokens_details": details}
    )


DONE = "data: [DONE]\n\n"


@dataclass
class Server:
    """`answer` may be replaced at any time; `requests` holds (path, headers, body) of all that came."""

    url: str = ""
    answer: Answer = lambda body: [DONE]
    status: int = 200
    served: tuple[str, ...] = ("m",)
    pause_s: float = 0.0
    requests: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)


@asynccontextmanager
async def sse_server() -> AsyncIterator[Server]:
    server = Server()

    async def post(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        server.requests.append((request.path, dict(request.headers), body))
        if server.status != 200:
            return web.json_response({"message": "the prompt is empty", "code": server.status}, status=server.status)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for line in server.answer(body):
            await response.write(line.encode())
            await asyncio.sleep(server.pause_s)
        return response

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in server.served]})

    app = web.Application()
    app.add_routes([web.post("/v1/completions", post), web.post("/v1/chat/completions", post), web.get("/v1/models", models)])
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    server.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    try:
        yield server
    finally:
        await runner.cleanup()
