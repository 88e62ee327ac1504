"""The demo's script, played against a running graph."""

from __future__ import annotations

import io
import re
from itertools import pairwise

from rich.console import Console
from whole_graph import WholeGraph

from ampd.bench.demo import play
from ampd.bench.demo_report import demo_json, print_demo

SESSIONS, TURNS = 2, 7


async def test_every_round_of_the_demo_is_answered_and_in_its_table(graph: WholeGraph) -> None:
    # A target that openings of the smallest size overload, for a short test.
    config = graph.running.graph
    config = config.model_copy(update={"targets": config.targets.model_copy(update={"ttft_s": 0.01})})
    totals: list[int] = []
    done: list[None] = []
    played = await play(graph.url, config, sessions=SESSIONS, max_tokens=6, total=totals.append, done=lambda: done.append(None))
    every = [r for rounds in played for r in rounds]
    assert [r.result.error for r in every] == [None] * SESSIONS * TURNS
    assert totals == [len(done)] == [SESSIONS * TURNS]
    for rounds in played:
        facts = [r.result.facts for r in rounds if r.result.facts is not None]
        assert [f.round for f in facts] == list(range(1, TURNS + 1))
        assert {f.path for f in facts} <= {"local", "remote"}
        assert all(now.l_hist > 0.8 * before.prompt_tokens for before, now in pairwise(facts))
    console = Console(file=io.StringIO(), width=160, record=True)
    print_demo(console, played)
    rows = re.findall(r"^ *([\w-]+) +(\d+) +(user|tool) +(?:local|remote) ", console.export_text(), re.MULTILINE)
    assert rows == [(r.session, str(r.result.number), r.trigger) for r in every]
    assert demo_json(played)["failed"] == 0
