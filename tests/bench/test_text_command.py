"""`ampd bench text --url` against a server whose answers the test writes: figures, exit codes, errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from asyncio_click import invoke
from sse_server import DONE, Server, completion, usage
from tokenizers import Tokenizer

from ampd.bench.cli import bench, demo

BLOCK = 32


@pytest.fixture
def graph_file(tmp_path: Path, tokenizer_folder: Path) -> Path:
    (tokenizer_folder / "config.json").write_text("{}")
    file = tmp_path / "graph.yaml"
    workers = "workers: [{name: prefill, role: prefill}, {name: decode, role: decode}]"
    file.write_text(f"model: {{path: {tokenizer_folder}, served_name: m, max_model_len: 2048}}\n{workers}\n")
    return file


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    folder = tmp_path / "traces"
    folder.mkdir()
    text = "".join(f"line {i} of the recording\n" for i in range(40))
    rows = [{"session": s, "t_us": i, "input": text[: 300 + 100 * i], "output": ""} for s in ("a", "b") for i in range(3)]
    (folder / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


class Oracle:
    """Answers as a right ledger would; `shift` makes it find more or fewer blocks, `fail` breaks a round."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._held: dict[str, list[int]] = {}
        self.shift = 0
        self.fail = False
        self.facts = True

    def __call__(self, body: dict[str, Any]) -> list[str]:
        ids = self._tokenizer.encode(body["prompt"]).ids
        name = str(ids[:8])  # the server does not see the headers here: both sessions share their text and their truth
        held = self._held.get(name, [])
        shared = 0
        while shared < min(len(held), len(ids) - 1) and held[shared] == ids[shared]:
            shared += 1
        first = len(ids) < len(held) or not held
        l_hist = 0 if first else max(0, shared // BLOCK + self.shift) * BLOCK
        self._held[name] = ids
        if self.fail:
            return [completion("x", [1])]
        ampd = {"path": "remote", "reason": "prefill_slack", "l_hist": l_hist, "l_incr": len(ids) - l_hist}
        ampd |= {"history_read_tokens": l_hist, "increment_read_tokens": len(ids) - l_hist}
        return [completion("xy", [1, 2], "length", ampd if self.facts else None), usage(len(ids), 2), DONE]


async def _replay(server: Server, graph: Path, traces: Path, *more: str) -> tuple[int, dict[str, Any], str]:
    done = await invoke(bench, ["text", str(traces), "--graph", str(graph), "--url", server.url, "--json", "-", *more])
    return done.exit_code, json.loads(done.stdout) if done.stdout else {}, done.stderr


async def test_all_answered_exits_with_zero(server: Server, graph_file: Path, traces: Path, tokenizer_folder: Path) -> None:
    server.answer = Oracle(tokenizer_folder)
    code, found, table = await _replay(server, graph_file, traces, "--concurrency", "1")
    assert code == 0, table
    assert (found["rounds"], found["answered"], found["sessions"]) == (6, 6, 2)
    assert found["paths"] == {"remote": 6}
    assert (found["short_history"], found["wrong_history"], found["miscounted"]) == (0, 0, 0)
    assert found["history_found_tokens"] == found["true_history_tokens"] > 0
    assert found["history_read_tokens"] == found["history_found_tokens"]
    assert found["history_found_tokens"] + found["increment_read_tokens"] == found["prompt_tokens"]
    assert "6 of 6 rounds answered; not compared" in table
    finals = [h.get("x-dynamo-session-final") for _, h, _ in server.requests]
    assert finals == [None, None, "true"] * 2
    keys = {h["x-dynamo-session-id"] for _, h, _ in server.requests}
    assert len(keys) == 2


async def test_a_run_never_meets_the_sessions_of_an_earlier_one(
    server: Server, graph_file: Path, traces: Path, tokenizer_folder: Path
) -> None:
    server.answer = Oracle(tokenizer_folder)
    for _ in range(2):
        await _replay(server, graph_file, traces, "--rounds", "1")
    assert len({h["x-dynamo-session-id"] for _, h, _ in server.requests}) == 4


@pytest.mark.parametrize(("shift", "field"), [(-1, "short_history"), (1, "wrong_history")])
async def test_a_wrong_ledger_is_counted(
    server: Server, graph_file: Path, traces: Path, tokenizer_folder: Path, shift: int, field: str
) -> None:
    server.answer = oracle = Oracle(tokenizer_folder)
    oracle.shift = shift
    _, found, table = await _replay(server, graph_file, traces, "--concurrency", "1")
    assert found[field] == 4
    assert "history found" in table


async def test_failed_rounds_exit_with_one(server: Server, graph_file: Path, traces: Path, tokenizer_folder: Path) -> None:
    server.answer = oracle = Oracle(tokenizer_folder)
    oracle.fail = True
    code, found, table = await _replay(server, graph_file, traces)
    assert code == 1
    assert (found["answered"], found["ok"]) == (0, False)
    assert "failed: the stream ended before the answer did" in table


async def test_a_server_without_ampd_is_replayed_too(
    server: Server, graph_file: Path, traces: Path, tokenizer_folder: Path
) -> None:
    server.answer = oracle = Oracle(tokenizer_folder)
    oracle.facts = False
    code, found, _ = await _replay(server, graph_file, traces)
    assert (code, found["paths"], found["short_history"]) == (0, {}, 0)


async def test_cut_prompts_are_reported(server: Server, graph_file: Path, traces: Path, tokenizer_folder: Path) -> None:
    server.answer = Oracle(tokenizer_folder)
    _code, found, table = await _replay(server, graph_file, traces, "--max-context", "100", "--max-tokens", "4")
    assert found["cut"] == sum(r["cut_tokens"] > 0 for r in found["rows"]) > 0
    assert f"{found['cut']} prompts were longer than the context" in table
    assert max(r["prompt_tokens"] for r in found["rows"]) <= 96
    assert all(body["max_tokens"] == 4 for _, _, body in server.requests)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--max-context", "40"), "--max-context 40 less --max-tokens 16 leaves 24 tokens"),
        (("--set", "model.served_name=other"), "serves ['m'], not 'other'"),
        (("--url", "http://127.0.0.1:9"), "no answer"),
        (("--set", "model.block_sise=3"), "did you mean block_size"),
    ],
)
async def test_bad_starts_exit_with_two(server: Server, graph_file: Path, traces: Path, more: tuple[str, ...], said: str) -> None:
    code, _, err = await _replay(server, graph_file, traces, *more)
    assert code == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1


async def test_json_goes_to_a_file(server: Server, graph_file: Path, traces: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    server.answer = Oracle(tokenizer_folder)
    file = tmp_path / "out.json"
    done = await invoke(bench, ["text", str(traces), "--graph", str(graph_file), "--url", server.url, "--json", str(file)])
    assert done.exit_code == 0
    assert "text replay" in done.stdout
    assert len(json.loads(file.read_text())["rows"]) == 6


async def test_demo_plays_every_turn(server: Server, graph_file: Path) -> None:
    def answer(body: dict[str, Any]) -> list[str]:
        local = len(body["messages"]) > 6
        ampd = {"path": "local" if local else "remote", "reason": "decode_slack", "l_hist": 64, "l_incr": 9, "ttft_s": 0.5}
        return [
            completion("", [], None, ampd),
            'data: {"choices": [{"delta": {"content": "Check the cache."}, "finish_reason": "stop"}]}\n\n',
            usage(73, 4),
            DONE,
        ]

    server.answer = answer
    args = ["--graph", str(graph_file), "--url", server.url, "--sessions", "3", "--json", "-"]
    done = await invoke(demo, args)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["both_paths"] is True
    assert len(found["rows"]) == 21
    by_session: dict[str, list[str]] = {}
    for row in found["rows"]:
        by_session.setdefault(row["session"], []).append(row["trigger"])
    assert all(len(t) >= 6 and t[0] == "user" and t.count("tool") >= 3 for t in by_session.values())
    for path, headers, body in server.requests:
        assert path == "/v1/chat/completions"
        answers = [m["content"] for m in body["messages"] if m["role"] == "assistant"]
        assert answers == ["Check the cache."] * len(answers)
        assert (headers.get("x-dynamo-session-final") == "true") == (len(answers) == 6)
    assert "Check the cache." in done.stderr
    assert "decode_slack" in done.stderr


async def test_demo_stops_a_session_at_its_failure(server: Server, graph_file: Path) -> None:
    server.status = 500
    done = await invoke(demo, ["--graph", str(graph_file), "--url", server.url, "--sessions", "2", "--json", "-"])
    assert done.exit_code == 1
    assert json.loads(done.stdout)["failed"] == 2
    assert "HTTP 500" in done.stderr
