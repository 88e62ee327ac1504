"""Processes are killed: what clients of the real frontend see, over real Dynamo, real Redis and workers that echo the prompt."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest
from api_graph import CHAT, ApiGraph, events, say, session
from redis_server import RedisServer


def test_deaths_of_workers(redis_child: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> None:
    graph = ApiGraph(tmp_path_factory.mktemp("deaths"), redis_child.url, policy={"force": ["remote"]})
    try:
        graph.start(decode=2)
        got = events(graph.connect(CHAT, say("b" * 40, stream=True), session("break here")))
        assert got[-1]["error"]["code"] == 503, "tokens had left: an error, not a second answer"
        assert len(got) == 2

        status, answer = graph.post(CHAT, say("b" * 40), session("goes on"))
        assert status == 200
        assert answer["nvext"]["engine_data"]["ampd"]["path"] == "remote"

        graph.children["prefill-0"].kill()
        for number in range(3):
            status, answer = graph.post(CHAT, say("p" * (40 + number)), session("goes on"))
            assert status == 200
        assert answer["nvext"]["engine_data"]["ampd"]["reason"] in ("prefill_failed", "only_local")

        for name in ("decode-0", "decode-1"):
            graph.children[name].kill()
        assert graph.post(CHAT, say("b" * 40), session("goes on"))[0] == 503

        coordinator = graph.children["coordinator-0"]
        coordinator.send_signal(signal.SIGTERM)
        assert coordinator.wait(15) == 0
    finally:
        graph.stop()


def test_a_killed_coordinators_sessions_go_on_where_they_were(
    redis_child: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    graph = ApiGraph(tmp_path_factory.mktemp("killed"), redis_child.url, policy={"force": ["remote", "local"]})
    try:
        graph.start(decode=3, coordinator=2)
        sessions = [f"goes on {n}" for n in range(6)]
        before = {s: graph.post(CHAT, say("k" * 60), session(s))[1]["nvext"]["engine_data"]["ampd"] for s in sessions}
        assert len({figures["decode_worker"] for figures in before.values()}) > 1
        graph.children["coordinator-0"].kill()
        for s in sessions:
            figures = retried(graph, say("k" * 60 + "and more"), session(s))["nvext"]["engine_data"]["ampd"]
            assert figures["decode_worker"] == before[s]["decode_worker"]
            assert (figures["round"], figures["rebound"]) == (2, None)
            assert figures["l_hist"] > 0
    finally:
        graph.stop()


def retried(graph: ApiGraph, body: dict[str, Any], headers: dict[str, str]) -> Any:
    """The answer, asked for again while the frontend still sends rounds to the dead Coordinator."""
    for _ in range(20):
        status, answer = graph.post(CHAT, body, headers)
        if status == 200:
            return answer
        assert status == 503, answer
        time.sleep(0.2)
    raise AssertionError("no answer")
