"""Traces of four formats: what is read from each, how they are told apart, and what is refused with file, line, field and fix."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ampd.bench.traces import arriving, generate, load_trace, poisson, recognise, save_rows
from ampd.bench.traces.mooncake import load_mooncake
from ampd.errors import ConfigError
from ampd.simulator.types import TraceRound, TraceSession

SHARED = Path(__file__).parents[3] / "shared" / "data" / "coding-agent-sessions.jsonl"


def write(path: Path, rows: Sequence[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def refused(path: Path) -> str:
    with pytest.raises(ConfigError) as error:
        load_trace(path)
    message = str(error.value)
    assert "\n" not in message
    return message


# ampd's rows


def test_written_sessions_are_read_back_unchanged(tmp_path: Path) -> None:
    made = arriving(generate("gaia", 40, 3), poisson(2.0, 40, 3))
    save_rows(made, tmp_path / "t.jsonl")
    assert recognise(tmp_path / "t.jsonl") == "rows"
    assert load_trace(tmp_path / "t.jsonl") == made
    first = json.loads((tmp_path / "t.jsonl").read_text().splitlines()[0])["rounds"][1]
    assert first["increment"] == first["prompt"] - first["history"]


def test_rows_of_lengths_need_no_times_and_no_tools(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", [{"session": "a", "rounds": [{"prompt": 9, "history": 0, "increment": 9, "output": 2}]}])
    assert load_trace(str(file)) == [TraceSession("a", (TraceRound(9, 0, 2),))]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"prompt": 0, "history": 0, "output": 1}, "rounds[1].prompt: 0; a prompt has at least 1 token"),
        ({"prompt": 20, "history": 12, "output": 0}, "rounds[1].output: 0; output >= 1"),
        (
            {"prompt": 20, "history": 21, "output": 1},
            "rounds[1].history: 21; prompt >= history >= 0 is needed, and the prompt has 20",
        ),
        ({"prompt": 20, "history": -1, "output": 1}, "rounds[1].history: -1; prompt >= history"),
        ({"prompt": 20, "history": 13, "output": 1}, "rounds[1].history: 13; the round before has left 12: give 12 or less"),
        ({"prompt": 20, "history": 12, "output": 1, "gap_s": -0.5}, "rounds[1].gap_s: -0.5; give the seconds from the end"),
    ],
)
def test_rows_that_no_session_can_have(tmp_path: Path, second: dict[str, float], words: str) -> None:
    rounds = [{"prompt": 10, "history": 0, "output": 2}, second]
    file = write(tmp_path / "t.jsonl", [{"session": "ok", "rounds": rounds[:1]}, {"session": "bad", "rounds": rounds}])
    assert refused(file).startswith(f"{file}:2: {words}")


def test_a_first_round_has_no_history(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", [{"session": "a", "rounds": [{"prompt": 9, "history": 3, "output": 2}]}])
    assert f"{file}:1: rounds[0].history: 3; nothing comes before a first round" in refused(file)


@pytest.mark.parametrize(
    ("times", "line", "words"),
    [
        ([1.0, None], 2, "arrives_s: missing; give all lines such a time, or none of them"),
        ([None, 1.0], 2, "arrives_s: 1.0; give all lines such a time, or none of them"),
        ([0.0, 5.0, 3.0], 3, "arrives_s: 3.0 comes after 5.0; sort the lines by arrives_s"),
        ([-1.0, 5.0], 1, "arrives_s: -1.0; times are 0 or more"),
    ],
)
def test_arrival_times_out_of_order_or_missing(tmp_path: Path, times: list[float | None], line: int, words: str) -> None:
    rounds = [{"prompt": 9, "history": 0, "output": 2}]
    rows = [{"session": "a", "rounds": rounds} | ({} if at is None else {"arrives_s": at}) for at in times]
    assert refused(write(tmp_path / "t.jsonl", rows)) == f"{tmp_path / 't.jsonl'}:{line}: {words}"


def test_the_recorded_coding_sessions() -> None:
    if not SHARED.exists():
        pytest.skip(f"{SHARED.name} is not beside the project")
    sessions = load_trace(SHARED)
    assert recognise(SHARED) == "rows"
    assert (len(sessions), sum(len(s.rounds) for s in sessions)) == (80, 2479)
    assert max(r.prompt for s in sessions for r in s.rounds) <= 131_072


# Mooncake


def request(at_ms: float, tokens: int, ids: list[int], output: int = 100) -> dict[str, Any]:
    return {"timestamp": at_ms, "input_length": tokens, "output_length": output, "hash_ids": ids}


def test_sessions_are_pieced_together_from_shared_blocks(tmp_path: Path) -> None:
    rows = [
        request(0, 1300, [0, 1, 2]),  # a: full blocks 0, 1
        request(0, 1400, [0, 3, 4]),  # b: full blocks 0, 3
        *(request(1000, 900, [0, 100 + i]) for i in range(10)),  # block 0, a preamble: too many follow it
        request(20_000, 1900, [0, 1, 5, 6]),  # a goes on
        request(21_000, 1900, [0, 3, 4, 7]),  # b goes on; block 4 was only begun, and is the same
        request(40_000, 2600, [0, 1, 5, 8, 9, 10]),  # a again: its blocks are 0, 1, 5
        request(41_000, 2700, [0, 1, 5, 8, 11, 12]),  # a second branch of a's third round: nobody waits at block 5 any more
    ]
    sessions = load_trace(write(tmp_path / "m.jsonl", rows))
    assert recognise(tmp_path / "m.jsonl") == "mooncake"
    assert len(sessions) == 13
    assert sessions[0].rounds == (
        TraceRound(1300, 0, 100),
        TraceRound(1900, 1024, 100, 17.0),  # 20 s less 100 tokens of 30 ms
        TraceRound(2600, 1536, 100, 17.0),
    )
    assert sessions[1].rounds == (TraceRound(1400, 0, 100), TraceRound(1900, 1400, 100, 18.0))
    assert [len(s.rounds) for s in sessions[2:]] == [1] * 11
    assert [s.arrives_s for s in sessions[:3]] == [0.0, 0.0, 1.0]
    assert sessions[-1].arrives_s == 41.0


def test_a_repeated_prompt_is_a_session_of_its_own(tmp_path: Path) -> None:
    rows = [request(0, 655, [46, 47], 52), request(10_535, 672, [46, 47], 26), request(27_482, 655, [46, 47], 52)]
    sessions = load_trace(write(tmp_path / "m.jsonl", rows))
    assert [[r.prompt for r in s.rounds] for s in sessions] == [[655, 672], [655]]
    assert sessions[0].rounds[1].history == 655


def test_a_request_joins_the_session_that_shares_most(tmp_path: Path) -> None:
    rows = [
        request(0, 1100, [1, 2, 3]),
        request(1000, 600, [1, 4]),
        request(2000, 1700, [1, 2, 5, 6]),
    ]
    sessions = load_trace(write(tmp_path / "m.jsonl", rows))
    assert [[r.prompt for r in s.rounds] for s in sessions] == [[1100, 1700], [600]]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (request(-1, 600, [1, 2]), "timestamp: -1.0; times are 0 or more"),
        (request(4000, 600, [1, 2]), "timestamp: 4000.0 comes after 5000.0; sort the lines by timestamp"),
        (request(6000, 0, []), "input_length: 0; at least 1 token is needed"),
        (request(6000, 600, [1, 2], 0), "output_length: 0; at least 1 token is needed"),
        (request(6000, 600, [1]), "hash_ids: 1 of them; a prompt of 600 tokens has 2 blocks of 512"),
        ({"input_length": 600, "output_length": 5, "hash_ids": [1, 2]}, "Object missing required field `timestamp`"),
    ],
)
def test_bad_requests_are_refused(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    file = write(tmp_path / "m.jsonl", [request(5000, 600, [1, 2]), row])
    assert refused(file).startswith(f"{file}:2: {words}")


def test_blocks_of_another_size(tmp_path: Path) -> None:
    file = write(tmp_path / "m.jsonl", [request(0, 40, [1, 2, 3]), request(10_000, 60, [1, 2, 4, 5])])
    assert [r.history for r in load_mooncake(file, block_size=16)[0].rounds] == [0, 32]


# AIPerf


def test_turns_add_to_the_context(tmp_path: Path) -> None:
    rows = [
        {
            "session_id": "s1",
            "turns": [
                {"role": "system", "text": "x" * 400},
                {"text": "y" * 40, "output_length": 7, "delay": 0},
                {"texts": ["zz", {"name": "t", "contents": ["zz", "zzzz"]}], "output_length": 3, "delay": 1500},
                {"input_length": 50, "output_length": 4},
            ],
        },
        {"session_id": "s2", "input_length": 300, "output_length": 40},
        {"session_id": "s2", "input_length": 150, "output_length": 20, "delay": 2},
        {"text_input": "abcdefgh", "session_id": "s3", "output_length": 1},
    ]
    sessions = load_trace(write(tmp_path / "a.jsonl", rows))
    assert recognise(tmp_path / "a.jsonl") == "aiperf"
    assert sessions == [
        TraceSession("s1", (TraceRound(110, 0, 7), TraceRound(119, 117, 3, 1.5), TraceRound(172, 122, 4))),
        TraceSession("s2", (TraceRound(300, 0, 40), TraceRound(490, 340, 20, 0.002))),
        TraceSession("s3", (TraceRound(2, 0, 1),)),
    ]


def test_timestamps_give_arrivals_and_gaps(tmp_path: Path) -> None:
    def turns(*times: float) -> list[dict[str, float]]:
        return [{"input_length": 10, "output_length": 100, "timestamp": at} for at in times]

    rows = [{"session_id": "b", "turns": turns(5000, 15_000)}, {"session_id": "a", "turns": turns(1000, 2000)}]
    sessions = load_trace(write(tmp_path / "a.jsonl", rows))
    assert [(s.name, s.arrives_s, s.rounds[1].gap_s) for s in sessions] == [("a", 1.0, 0.0), ("b", 5.0, 7.0)]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"session_id": "a", "turns": []}, ":2: turns: empty"),
        ({"session_id": "a", "turns": [{"input_length": 0, "output_length": 1}]}, ":2: turns[0]: input_length: 0"),
        (
            {"session_id": "a", "turns": [{"input_length": 5}]},
            ":2: turns[0]: output_length: missing or 0; give the answer's tokens",
        ),
        ({"session_id": "a", "turns": [{"output_length": 5}]}, ":2: turns[0]: input_length: missing, and no text"),
        ({"session_id": "ok", "input_length": 5, "output_length": 5, "delay": -3}, ":2: delay: -3.0; give milliseconds, 0 or more"),
        ({"session_id": "ok", "input_length": 5, "output_length": 5, "timestamp": 1}, ":2: timestamp: 1.0 comes after 9.0"),
        ({"session_id": "a", "input_length": 5, "output_length": 5}, ":2: timestamp: missing; give all sessions one"),
    ],
)
def test_bad_turns_are_refused(tmp_path: Path, row: dict[str, Any], words: str) -> None:
    first = {"session_id": "ok", "turns": [{"input_length": 5, "output_length": 5, "timestamp": 9}]}
    file = write(tmp_path / "a.jsonl", [first, row])
    assert refused(file).startswith(f"{file}{words}")


# Weka


def call(t: float, tokens: int, ids: list[int], output: int = 10, **more: Any) -> dict[str, Any]:
    return {"t": t, "type": "s", "model": "m", "in": tokens, "out": output, "hash_ids": ids, "stop": "", **more}


def session(*requests: dict[str, Any], name: str = "w1") -> dict[str, Any]:
    return {"id": name, "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 5, "requests": list(requests)}


SUBAGENT = {
    "t": 12.0, "type": "subagent", "agent_id": "agent_001", "subagent_type": "Explore", "duration_ms": 4000, "status": "completed",
    "models": ["m"], "requests": [call(0.0, 70, [50, 51]), call(2.5, 140, [50, 52, 53], api_time=0.5)],
}  # fmt: skip
TRACE = session(
    call(2.0, 200, [1, 2, 3, 4], api_time=3.0, stop="tool_use"),
    call(6.0, 400, [1, 2, 3, 5, 6, 7, 8], api_time=1.5, stop="end_turn"),
    call(6.0, 400, [1, 2, 3, 5, 6, 7, 8], output=0),
    SUBAGENT,
    call(20.0, 300, [1, 9, 10, 11, 12], think_time=4.25),
)


@pytest.mark.parametrize("indent", [None, 2])
def test_an_agents_session_and_its_sub_agents(tmp_path: Path, indent: int | None) -> None:
    (tmp_path / "w.json").write_text(json.dumps(TRACE, indent=indent))
    assert recognise(tmp_path / "w.json") == "weka"
    agent, sub = load_trace(tmp_path / "w.json")
    assert agent == TraceSession(
        "w1",
        (
            TraceRound(200, 0, 10),
            TraceRound(400, 192, 10, 1.0, "tool"),  # 4 s from start to start, of which the server took 3
            TraceRound(400, 399, 1, 0.0, "user"),  # the same request again: its last token at least is computed
            TraceRound(300, 64, 10, 4.25, "Explore"),  # a rewritten context
        ),
    )
    assert sub == TraceSession("w1/agent_001", (TraceRound(70, 0, 10), TraceRound(140, 64, 10, 2.2)), 10.0)


def test_folders_and_lines_of_sessions(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    two = [session(call(0.0, 70, [1, 2]), name="one"), session(call(3.0, 90, []), call(9.0, 120, []), name="two")]
    for trace in two:
        (folder / f"{trace['id']}.json").write_text(json.dumps(trace))
    sessions = load_trace(folder)
    assert sessions == load_trace(write(tmp_path / "lines.jsonl", two))
    assert [s.name for s in sessions] == ["one", "two"]
    assert sessions[1].rounds[1] == TraceRound(120, 100, 10, 5.7)  # without ids it is taken to go on


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([call(0, 0, [])], "w1: requests[0].in: 0; a prompt has at least 1 token"),
        ([call(5, 70, [1]), call(4, 70, [1])], "w1: requests[1].t: 4.0 comes after 5.0; sort the requests by t"),
        ([call(0, 70, [1]), call(1, 70, [1], think_time=-2)], "w1: requests[1].think_time: -2.0; give seconds, 0 or more"),
        ([{**SUBAGENT, "requests": [call(0, 0, [])]}], "w1/agent_001: requests[0].in: 0"),
        ([{"type": "s", "in": 5, "out": 5}], "Object missing required field `t`"),
    ],
)
def test_bad_recordings_are_refused(tmp_path: Path, requests: list[dict[str, Any]], words: str) -> None:
    (tmp_path / "w.json").write_text(json.dumps(session(*requests)))
    assert refused(tmp_path / "w.json").startswith(f"{tmp_path / 'w.json'}: {words}")


# Telling them apart


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ": no sessions; give a file of sessions"),
        ("not json\n", ":1: no JSON object; expected a session of ampd's (rounds)"),
        ('{"prompt": "hello"}\n', ":1: prompt; expected a session"),
    ],
)
def test_what_is_no_trace(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "x").write_text(text)
    assert refused(tmp_path / "x").startswith(f"{tmp_path / 'x'}{words}")


def test_a_format_can_be_given_and_is_then_meant(tmp_path: Path) -> None:
    file = write(tmp_path / "m.jsonl", [request(0, 600, [1, 2])])
    assert len(load_trace(file, "mooncake")) == 1
    with pytest.raises(ConfigError, match="missing required field `session`"):
        load_trace(file, "rows")
    with pytest.raises(ConfigError, match="format: 'csv' is unknown; choose one of auto, rows, mooncake, aiperf, weka"):
        load_trace(file, "csv")  # type: ignore[arg-type]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "cannot be read" in refused(tmp_path / "missing.jsonl")
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    assert "is no text" in refused(tmp_path / "b")
    (tmp_path / "empty").mkdir()
    assert "no sessions" in refused(tmp_path / "empty")
