"""What clients of the real frontend see, over real Dynamo, real Redis and workers that echo the prompt."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from api_graph import CHAT, CONTEXT, DATA, TEXT, ApiGraph, events, say, session
from redis_server import RedisServer


@pytest.fixture(scope="module")
def api(redis_child: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiGraph]:
    graph = ApiGraph(tmp_path_factory.mktemp("api"), redis_child.url, policy={"force": ["remote", "local"]})
    try:
        graph.start(coordinator=2)
        yield graph
    finally:
        graph.stop()


def test_a_chat_is_answered_with_usage_and_explained(api: ApiGraph) -> None:
    status, answer = api.post(CHAT, say("x" * 70), session("chat"))
    assert status == 200
    assert answer["choices"][0]["message"]["content"].startswith("user")
    prompt = answer["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    figures = answer["nvext"]["engine_data"]["ampd"]
    assert (figures["path"], figures["reason"], figures["round"], figures["l_hist"]) == ("remote", "forced", 1, 0)
    assert figures["prompt_tokens"] == figures["l_incr"] == prompt
    assert figures["session"] not in ("chat", None)
    assert figures["ttft_s"] > 0
    assert {"local"} < set(figures["estimates"])
    status, answer = api.post(CHAT, say("x" * 70), session("chat"))
    figures = answer["nvext"]["engine_data"]["ampd"]
    assert (figures["path"], figures["round"]) == ("local", 2)
    assert figures["l_hist"] == (prompt - 1) // 16 * 16
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == figures["l_hist"]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_streams_end_with_usage_and_explanation(api: ApiGraph, path: str) -> None:
    body = say("hello", stream=True, stream_options={"include_usage": True})
    if path == TEXT:
        body["prompt"] = body.pop("messages")[0]["content"] * 3
    got = events(api.connect(path, body, session(f"stream{path}")))
    assert len([e for e in got if e["choices"]]) == 8
    assert got[-1]["usage"]["completion_tokens"] == 8
    explained = [e["nvext"]["engine_data"]["ampd"] for e in got if "engine_data" in (e.get("nvext") or {})]
    assert len(explained) == 1
    assert explained[0]["path"] == "remote"


def test_nothing_is_explained_unasked(api: ApiGraph) -> None:
    status, answer = api.post(CHAT, say("hello", nvext={}))
    assert status == 200
    assert "nvext" not in answer or "engine_data" not in answer["nvext"]


def test_what_the_client_asks_reaches_the_engine_unharmed(api: ApiGraph) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    format = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    body = say(
        "hello", n=2, stop=["!"], seed=7, logprobs=True, top_logprobs=3, temperature=0.25, response_format=format, tools=tools
    )
    headers = session("features", **{"x-tenant-id": "acme"})
    status, answer = api.post(CHAT, body, headers)
    assert status == 200
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["nvext"]["engine_data"]["ampd"]["reason"] == "engine_needs_local"
    request = api.heard("decode")[-1]["request"]
    assert request["sampling_options"]["n"] == 2
    assert request["sampling_options"]["seed"] == 7
    assert request["sampling_options"]["temperature"] == 0.25
    assert request["sampling_options"]["guided_decoding"]["json"] == schema
    assert request["stop_conditions"]["stop"] == ["!"]
    assert request["output_options"]["logprobs"] == 3
    assert request["routing"]["cache_salt"] == "acme"


@pytest.mark.parametrize(
    "header",
    ["x-dynamo-session-id", "x-claude-code-session-id", "x-session-id"],
)
def test_session_headers_that_dynamo_understands(api: ApiGraph, header: str) -> None:
    for number in (1, 2):
        figures = api.post(CHAT, say("h" * 40), {header: f"by {header}"})[1]["nvext"]["engine_data"]["ampd"]
        assert (figures["round"], figures["derived"]) == (number, False)


def test_without_a_header_the_session_is_derived_from_the_opening(api: ApiGraph) -> None:
    body = say("the same opening", max_tokens=4)
    first = api.post(CHAT, body)[1]["nvext"]["engine_data"]["ampd"]
    body["messages"] += [{"role": "assistant", "content": "yes?"}, {"role": "user", "content": "go on"}]
    second = api.post(CHAT, body)[1]["nvext"]["engine_data"]["ampd"]
    assert (second["derived"], second["session"], second["round"]) == (True, first["session"], 2)


@pytest.mark.parametrize("how", ["headers", "annotations"])
def test_targets_and_priority_of_a_request(api: ApiGraph, how: str) -> None:
    headers = {"x-slo-ttft-ms": "1500", "x-slo-tpot-ms": "25"} if how == "headers" else {}
    annotations = ["slo-ttft-ms:1500", "slo-tpot-ms:25"] if how == "annotations" else []
    nvext = {**DATA["nvext"], "agent_hints": {"priority": 4}, "annotations": annotations}
    status, answer = api.post(CHAT, say("t", nvext=nvext), session(f"asks by {how}", **headers))
    assert status == 200
    figures = answer["nvext"]["engine_data"]["ampd"]
    assert (figures["ttft_target_s"], figures["itl_target_s"], figures["priority"]) == (1.5, 0.025, 4)


def test_tenants_do_not_share_sessions(api: ApiGraph) -> None:
    ids = [
        api.post(CHAT, say("t"), session("shared", **({"x-tenant-id": tenant} if tenant else {})))[1]["nvext"]["engine_data"][
            "ampd"
        ]["session"]
        for tenant in ("", "a", "b", "a")
    ]
    assert len(set(ids)) == 3
    assert ids[1] == ids[3]


def test_the_final_round_releases_everything(api: ApiGraph) -> None:
    for number in range(3):
        headers = session("ends", **({"x-dynamo-session-final": "true"} if number == 2 else {}))
        assert api.post(CHAT, say("f" * (40 + number)), headers)[0] == 200
    figures = api.post(CHAT, say("f" * 44), session("ends"))[1]["nvext"]["engine_data"]["ampd"]
    assert (figures["round"], figures["l_hist"]) == (1, 0)


LONG = "y" * CONTEXT
BAD = [
    (TEXT, {"prompt": ""}, {}, 400, "empty"),
    (CHAT, {"messages": []}, {}, 400, "empty"),
    (CHAT, say(LONG), {}, 400, f"the model's context is {CONTEXT} tokens"),
    (TEXT, {"prompt": LONG, "max_tokens": 5}, {}, 400, "shorten it"),
    (CHAT, say("x", max_tokens=CONTEXT), {}, 400, f"max_tokens is {CONTEXT}"),
    (CHAT, say("x", max_tokens=0), {}, 400, "greater than 0"),
    (CHAT, say("x", max_tokens=-1), {}, 400, "expected u32"),
    (CHAT, say("x", model="other"), {}, 404, "not found"),
    (CHAT, '{"model": "echo", "messages": [', {}, 400, "deserialize"),
    (CHAT, say("x"), session("s" * 300), 400, "a session id has at most 256"),
    (CHAT, say("x"), {"x-filler": "f" * 1_000_000}, 431, ""),
    (CHAT, say("x"), {"x-slo-ttft-ms": "soon"}, 400, "x-slo-ttft-ms is 'soon': give a number of milliseconds"),
    (CHAT, say("x", nvext={"annotations": ["slo-tpot-ms:-1"]}), {}, 400, "slo-tpot-ms is '-1': give a number"),
    (CHAT, say("x", nvext={"agent_hints": {"priority": "high"}}), {}, 400, "expected i32"),
    (CHAT, say("x"), session("refuse"), 400, "top_k must be smaller"),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "headers", "status", "text"), BAD, ids=[f"{c[3]}-{c[4][:14]}" for c in BAD])
def test_bad_requests_are_the_clients_fault_and_say_why(
    api: ApiGraph, path: str, body: Any, headers: dict[str, str], status: int, text: str, stream: bool
) -> None:
    if isinstance(body, dict):
        body = {**body, "stream": stream}
    try:
        got, answer = api.post(path, body, headers)
    except (BrokenPipeError, ConnectionResetError):
        assert status == 431, "only an oversized header may be cut off while it is still being sent"
        return
    assert got == status
    assert text in json.dumps(answer)


def test_no_bad_request_leaves_anything_behind(api: ApiGraph, redis_child: RedisServer) -> None:
    client = redis.Redis(unix_socket_path=str(redis_child.socket))
    queues = [key for key in client.scan_iter(f"*{api.graph.name}*:queue:*") if client.hlen(key)]
    assert queues == []
    assert not list(client.scan_iter(f"*{api.graph.name}*:session:*refuse*")), "keys are hashed"


def hang_up(api: ApiGraph, headers: dict[str, str]) -> dict[str, Any]:
    """Leave a slow answer after its first event. Returns what the Coordinator says of its end."""
    time.sleep(0.3)  # the lines of the rounds before are written together, a moment later
    before = {line["id"] for line in api.logged("ampd.round")}
    response = api.connect(CHAT, say("z" * 200, stream=True, max_tokens=150), headers)
    assert response.readline().startswith(b"data: ")
    response.close()
    return api.wait_logged("ampd.round", before)


def test_a_client_that_hangs_up_ends_its_round_and_keeps_its_history(api: ApiGraph) -> None:
    ended = hang_up(api, session("slow hang-up"))
    assert ended["outcome"] in ("cancelled", "abandoned")
    assert 1 < ended["tokens_out"] < 100
    api.wait_heard("finish", id=ended["id"])
    status, answer = api.post(CHAT, say("z" * 200, max_tokens=3), session("slow hang-up"))
    assert status == 200
    figures = answer["nvext"]["engine_data"]["ampd"]
    assert (figures["round"], figures["l_hist"]) == (2, (figures["prompt_tokens"] - 1) // 16 * 16)


def test_a_client_that_hangs_up_stops_its_final_round(api: ApiGraph) -> None:
    stopped, abandoned = len(api.heard("stopped")), len(api.heard("abandon"))
    ended = hang_up(api, session("slow goodbye", **{"x-dynamo-session-final": "true"}))
    assert ended["outcome"] in ("cancelled", "abandoned")
    assert api.wait_heard("stopped", more_than=stopped)[-1]["after"] < 100
    api.wait_heard("abandon", more_than=abandoned)
    status, answer = api.post(CHAT, say("z" * 200, max_tokens=3), session("slow goodbye"))
    assert status == 200
    assert answer["nvext"]["engine_data"]["ampd"]["round"] == 1, "the round that was cut short does not count"


def test_prefill_pins_are_released_once_read(api: ApiGraph) -> None:
    before = len(api.heard("release"))
    assert api.post(CHAT, say("r" * 50), session("released"))[0] == 200
    api.wait_heard("release", more_than=before)


def test_one_structured_line_a_decision_without_raw_ids(api: ApiGraph) -> None:
    api.post(CHAT, say("l" * 50), session("secret-name"))
    time.sleep(0.3)  # lines are written together
    logs = "".join((api.folder / f"coordinator-{n}.log").read_text() for n in (0, 1))
    assert "secret-name" not in logs
    lines = api.logged("ampd.route")
    assert len({line["id"] for line in lines}) > 10
    assert {"path", "reason", "estimates", "l_hist", "l_incr", "session"} <= set(lines[-1])


def test_metrics_on_the_status_port(api: ApiGraph) -> None:
    assert api.post(CHAT, say("m" * 50))[0] == 200
    text = "".join(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode() for port in api.status_ports)
    assert 'ampd_route_decisions_total{path="remote",reason="forced",round="initial"}' in text
    assert "ampd_ttft_seconds_bucket" in text
