from __future__ import annotations

import pytest
from sse_server import DONE, Server, chunk, completion, usage

from ampd.bench.client import Client
from ampd.bench.rounds import RoundRequest


async def _send(server: Server, dialect: str = "dynamo", timeout_s: float = 10.0, **fields: object):
    request = RoundRequest(**{"session": "s", "number": 1, "max_tokens": 4, "prompt": "hello", **fields})  # type: ignore[arg-type]
    async with Client(server.url, "m", dialect=dialect, timeout_s=timeout_s) as client:  # type: ignore[arg-type]
        return await client.send(request)


async def test_round_is_read_to_its_end(server: Server) -> None:
    facts = {"path": "remote", "reason": "prefill_slack", "l_hist": 32, "l_incr": 9, "history_read_tokens": 32, "new_field": 1}
    server.pause_s = 0.03
    server.answer = lambda body: [
        completion("he", [1]),
        ": keep-alive\n\n",
        completion("l", [2]),
        completion("lo", [3], "length", facts),
        usage(41, 3, 32),
        DONE,
    ]
    result = await _send(server)
    assert result.error is None
    assert (result.text, result.token_ids, result.finish_reason) == ("hello", [1, 2, 3], "length")
    assert (result.prompt_tokens, result.completion_tokens, result.cached_tokens) == (41, 3, 32)
    assert result.facts is not None
    assert (result.facts.path, result.facts.l_hist, result.facts.history_read_tokens) == ("remote", 32, 32)
    assert result.ttft_s is not None
    assert result.itl_s is not None
    # three tokens, three pauses before the last one: two gaps
    assert result.itl_s == pytest.approx(0.045, abs=0.03)
    assert result.ttft_s < result.total_s


async def test_body_and_headers(server: Server) -> None:
    server.answer = lambda body: [completion("x", [1], "stop"), DONE]
    await _send(server, final=True)
    path, headers, body = server.requests[0]
    assert path == "/v1/completions"
    assert (headers["x-dynamo-session-id"], headers["x-dynamo-session-final"]) == ("s", "true")
    assert body["prompt"] == "hello"
    assert body["temperature"] == 0
    assert body["stream"] is True
    assert set(body["nvext"]["extra_fields"]) == {"engine_data", "completion_token_ids"}
    await _send(server, prompt=None, messages=[{"role": "user", "content": "hi"}], session=None, extra={"seed": 7})
    path, headers, body = server.requests[1]
    assert path == "/v1/chat/completions"
    assert body["messages"][0]["content"] == "hi"
    assert body["seed"] == 7
    assert "x-dynamo-session-id" not in headers
    assert "prompt" not in body


async def test_vllm_dialect_takes_token_ids_from_the_choice(server: Server) -> None:
    server.answer = lambda body: [chunk(choices=[{"text": "a", "token_ids": [5, 6], "finish_reason": "length"}]), DONE]
    result = await _send(server, dialect="vllm")
    assert result.error is None
    assert result.token_ids == [5, 6]
    assert server.requests[0][2]["return_token_ids"] is True
    assert "nvext" not in server.requests[0][2]


async def test_chat_delta_is_text(server: Server) -> None:
    server.answer = lambda body: [chunk(choices=[{"delta": {"content": "yes"}, "finish_reason": "stop"}]), DONE]
    assert (await _send(server, prompt=None, messages=[])).text == "yes"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([completion("he", [1])], "ended before"),
        ([completion("he", [1]), DONE], "ended before"),
        ([completion("he", [1]), "event: error\n: worker gone\n\n"], "worker gone"),
        ([completion("he", [1]), chunk(error={"message": "engine died"}), DONE], "engine died"),
        ([completion("he", [1], "error"), DONE], "error"),
        (["data: {not json\n\n", DONE], "JSONDecodeError"),
        ([completion("he", [1], "stop", {"l_hist": "many"}), DONE], "l_hist"),
    ],
    ids=["cut", "no-finish", "error-event", "error-chunk", "error-finish", "not-json", "malformed-facts"],
)
async def test_broken_answers_are_failures(server: Server, lines: list[str], said: str) -> None:
    server.answer = lambda body: lines
    result = await _send(server)
    assert result.error is not None
    assert said in result.error


async def test_http_error_carries_the_servers_words(server: Server) -> None:
    server.status = 400
    assert (await _send(server)).error == "HTTP 400: the prompt is empty"


async def test_no_server_and_no_end_are_failures(server: Server) -> None:
    async with Client("http://127.0.0.1:9", "m") as client:
        result = await client.send(RoundRequest(number=1, max_tokens=1, prompt="x"))
    assert result.error is not None
    assert "Connect" in result.error
    server.pause_s = 5.0
    server.answer = lambda body: [completion("he", [1]), DONE]
    assert (await _send(server, timeout_s=0.3)).error == "no end within 0.3 s"


async def test_a_very_long_event_is_read(server: Server) -> None:
    server.answer = lambda body: [completion("x" * 2_000_000, [1], "stop"), DONE]
    result = await _send(server)
    assert result.error is None
    assert len(result.text) == 2_000_000
