"""Recorded agent text through a real graph and a plain vLLM engine, in float32: equal tokens, true history.

The graph is started once for all tests of this file, by the same command line that a user types.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from asyncio_click import invoke

from ampd.bench.cli import bench
from ampd.config import dump_graph, load_graph
from ampd.launch import RunningGraph, running_graph

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared" / "data" / "agent-text"
pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
async def running(tiny_model: Path) -> AsyncIterator[RunningGraph]:
    graph = load_graph(ROOT / "configs/tiny-test.yaml", [f"model.path={tiny_model}"])
    async with running_graph(graph) as started:
        yield started


@pytest.fixture
def graph_file(running: RunningGraph, tmp_path: Path) -> Path:
    file = tmp_path / "graph.yaml"
    file.write_text(dump_graph(running.graph))
    return file


def recording(folder: Path) -> Path:
    """Two sessions whose inputs grow by 1 to some 900 characters; one of them is edited in the middle, another starts over."""
    rng = random.Random(3)
    rows = []
    for name in ("grows", "edited"):
        text = f"Session {name}.\n" + _lines(rng, 1500)
        for number, size in enumerate((0, 1, 40, 900, 200, 300)):
            text += _lines(rng, size)
            if name == "edited" and number == 3:
                text = text[:700] + "[older output was removed]\n" + text[1200:]
            if name == "edited" and number == 5:
                text = "A new start.\n" + _lines(rng, 800)
            rows.append({"session": name, "t_us": number, "input": text, "output": "not used"})
    folder.mkdir()
    (folder / "made.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def _lines(rng: random.Random, size: int) -> str:
    text = ""
    while len(text) < size:
        text += f"{rng.choice(('def', 'class', 'import', 'return'))} name_{rng.randrange(10**6)}\n"
    return text[: max(size, 1)]


async def _replay(running: RunningGraph, graph_file: Path, folder: Path, *more: str) -> dict[str, Any]:
    args = ["text", str(folder), "--graph", str(graph_file), "--url", running.url, "--compare", "--json", "-", *more]
    done = await invoke(bench, args)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _check(found: dict[str, Any]) -> None:
    assert found["answered"] == found["rounds"] == found["compared"] == sum(found["paths"].values())
    assert found["differing"] == 0
    assert (found["short_history"], found["wrong_history"], found["miscounted"]) == (0, 0, 0)
    assert found["recomputed"] == {}
    assert found["history_found_tokens"] == found["true_history_tokens"] > 0
    assert all(row["token_ids"] == row["reference_token_ids"] != [] for row in found["rows"])


async def test_a_generated_recording(running: RunningGraph, graph_file: Path, tmp_path: Path) -> None:
    found = await _replay(running, graph_file, recording(tmp_path / "made"))
    _check(found)
    histories = {s: [r["l_hist"] for r in rows] for s, rows in itertools.groupby(found["rows"], lambda r: r["session"])}
    grows, edited = histories.values()
    assert grows[0] == 0
    assert all(a <= b for a, b in itertools.pairwise(grows))
    assert edited[3] < edited[2]  # the edit
    assert edited[5] == 0  # the new start


async def test_the_recorded_agents(running: RunningGraph, graph_file: Path) -> None:
    if not SHARED.is_dir():
        pytest.skip(f"the recorded agent sessions are not at {SHARED}")
    found = await _replay(running, graph_file, SHARED)
    assert (found["sessions"], found["rounds"]) == (6, 84)
    _check(found)
    # Nearly all of each prompt is history: these agents only append.
    assert found["history_found_tokens"] > 0.8 * found["prompt_tokens"]
