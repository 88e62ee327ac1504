"""Does a process, and does the whole graph, serve? Asked again and again by the supervisor."""

from __future__ import annotations

import asyncio
import http.client
import json
import urllib.error
import urllib.request
import uuid
from pathlib import Path
from typing import Any

from ampd.errors import SetupError
from ampd.launch.plan import ProcessSpec

HTTP_TIMEOUT_S = 2.0
COMPLETION_TIMEOUT_S = 60.0
_UNREACHED = (OSError, http.client.HTTPException)


async def is_ready(spec: ProcessSpec) -> bool:
    """Whether the process has said, in the way its spec names, that it serves."""
    if spec.ready_socket is not None:
        return await _redis_answers(spec.ready_socket)
    if spec.ready_url is not None:
        return await asyncio.to_thread(_http_answers, spec.ready_url)
    return spec.ready_file is None or spec.ready_file.exists()


async def serves_model(url: str, model: str) -> bool:
    """Whether the frontend lists the model: it does once a Coordinator has registered it."""
    try:
        listing = await asyncio.to_thread(_call, f"{url}/v1/models", None, HTTP_TIMEOUT_S)
    except (urllib.error.HTTPError, *_UNREACHED):
        return False
    return any(entry.get("id") == model for entry in listing.get("data", []))


async def try_completion(url: str, model: str) -> str | None:
    """Ask for one token, in a session that ends with it. None when it came, else why it did not."""
    body = {"model": model, "prompt": "Hello", "max_tokens": 1}
    try:
        answer = await asyncio.to_thread(_call, f"{url}/v1/completions", body, COMPLETION_TIMEOUT_S)
    except urllib.error.HTTPError as e:
        return f"HTTP {e.code}: {e.read(2000).decode(errors='replace').strip()}"
    except _UNREACHED as e:
        return str(e)
    return None if answer.get("choices") else f"no choices in {json.dumps(answer)[:300]}"


async def wait_graph(url: str, model: str, timeout_s: float) -> None:
    """Return when the model is listed and a completion works. Raises SetupError after `timeout_s`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    why: str | None = f"{url}/v1/models does not list {model}"
    while loop.time() < deadline:
        if await serves_model(url, model):
            why = await try_completion(url, model)
            if why is None:
                return
        await asyncio.sleep(0.2)
    raise SetupError(f"the graph does not answer after {timeout_s:.0f} s: {why}")


async def _redis_answers(socket: Path) -> bool:
    try:
        reader, writer = await asyncio.open_unix_connection(socket)
    except OSError:
        return False
    try:
        writer.write(b"PING\r\n")
        return await asyncio.wait_for(reader.readline(), HTTP_TIMEOUT_S) == b"+PONG\r\n"
    except (OSError, TimeoutError):
        return False
    finally:
        writer.close()


def _http_answers(url: str) -> bool:
    try:
        _call(url, None, HTTP_TIMEOUT_S)
    except urllib.error.HTTPError:
        return True  # any answer shows that it listens
    except _UNREACHED:
        return False
    return True


def _call(url: str, body: dict[str, Any] | None, timeout_s: float) -> dict[str, Any]:
    session = {"x-dynamo-session-id": f"ampd-probe-{uuid.uuid4()}", "x-dynamo-session-final": "true"}
    headers = {"content-type": "application/json", **(session if body else {})}
    request = urllib.request.Request(url, None if body is None else json.dumps(body).encode(), headers)
    # No proxy: the graph is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=timeout_s) as response:
        answer = json.load(response)
    if not isinstance(answer, dict):
        raise http.client.HTTPException(f"expected an object, got {type(answer).__name__}")
    return answer
