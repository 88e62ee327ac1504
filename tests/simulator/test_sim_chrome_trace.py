"""The timeline of a run, as a Chrome trace."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from sim_graphs import graph_data

from ampd.config import build_graph
from ampd.simulator.commands.run import Run, run_once
from ampd.simulator.commands.scenario import Rules, load_scenario
from ampd.simulator.commands.workload import Workload
from ampd.simulator.results.chrome_trace import ChromeTrace

Events = list[dict[str, Any]]


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Events]:
    scenario = load_scenario(build_graph(graph_data()))
    sessions, end_s = Workload("dureader", 4.0, rounds=200).sessions(1)
    setup = scenario.setup(Rules(), sessions)
    sink = ChromeTrace(setup.groups)
    run = run_once(setup, scenario.cost, sessions, end_s, 1, sink=sink)
    file = tmp_path_factory.mktemp("timeline") / "trace.json"
    sink.write(file)
    return run, json.loads(file.read_text())["traceEvents"]


def test_each_round_decodes_once_on_its_worker_from_first_to_last_token(simulated: tuple[Run, Events]) -> None:
    run, events = simulated
    records = run.outcome.records
    decodes = sorted((e["ts"], e["ts"] + e["dur"], e["pid"]) for e in events if e["ph"] == "X" and e["cat"] == "decode")
    first = records.arrived_s + records.ttft_s
    expected = sorted((1e6 * b, 1e6 * e, d) for b, e, d in zip(first, records.ended_s, records.decode, strict=True) if e > b)
    assert len(decodes) == len(expected) > 100
    for seen, wanted in zip(decodes, expected, strict=True):
        assert seen == (pytest.approx(wanted[0], abs=1), pytest.approx(wanted[1], abs=1), wanted[2])


def test_lanes_hold_one_thing_at_a_time_and_have_names(simulated: tuple[Run, Events]) -> None:
    _, events = simulated
    lanes = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            lanes[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert named == set(lanes)
    for spans in lanes.values():
        assert all(end <= begin + 0.2 for (_, end), (begin, _) in pairwise(spans))


def test_counters_follow_what_waits_and_decodes(simulated: tuple[Run, Events]) -> None:
    _, events = simulated
    for name, kind in (("batch", "decode"), ("queue", "queue")):
        for worker in (0, 1):
            counts = [e["args"]["rounds"] for e in events if e["ph"] == "C" and e["name"] == name and e["pid"] == worker]
            lanes = {e["tid"] for e in events if e["ph"] == "X" and e["cat"] == kind and e["pid"] == worker}
            # The first free lane is taken, so as many lanes are used as things ever happened at once.
            assert max(counts, default=0) == len(lanes)
            assert counts[-1:] in ([], [0])
            assert min(counts, default=0) >= 0


def test_workers_have_their_names_and_each_kind_of_work(simulated: tuple[Run, Events]) -> None:
    _, events = simulated
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["prefill 0 (TP 2)", "decode 1 (TP 4)"]
    kinds = {(e["pid"], e["cat"]) for e in events if e["ph"] == "X"}
    assert {(0, "prefill"), (1, "decode"), (1, "read")} <= kinds
