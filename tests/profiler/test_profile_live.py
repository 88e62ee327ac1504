"""`ampd profile` on a real engine pair: killed in the middle, resumed, finished, and not begun a third time."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil
import pytest

from ampd.cost_model import Profile, load_profile
from ampd.profiler.journal import Sample, State, journal_path
from ampd.profiler.sampling import QUICK_PLAN

ROOT = Path(__file__).parents[2]
_WANTED = 25  # samples before the kill


@dataclass
class Story:
    """What two runs left: the journal's lines at the kill and at the end, and what the third run said."""

    out: Path
    profile: Profile
    left_behind: list[int]
    text: str
    third: subprocess.CompletedProcess[str]
    killed: list[Sample] = field(default_factory=list)
    ended: list[Sample] = field(default_factory=list)
    states: list[State] = field(default_factory=list)


def _command(model: Path, out: Path) -> list[str]:
    sets = [f"model.path={model}", "model.max_model_len=1280"]
    graph = str(ROOT / "configs/tiny-test.yaml")
    return [
        sys.executable, "-m", "ampd.profiler", "--graph", graph, "--out", str(out), "--quick", "--budget", "5",
        *(part for text in sets for part in ("--set", text)),
    ]  # fmt: skip


def _lines(path: Path) -> list[Sample | State]:
    """Whole lines only: the process may be writing."""
    whole = path.read_bytes().rpartition(b"\n")[0].splitlines()[1:] if path.exists() else []
    return msgspec.json.decode(b"[" + b",".join(whole) + b"]", type=list[Sample | State])


def _samples(lines: list[Sample | State]) -> list[Sample]:
    return [line for line in lines if isinstance(line, Sample)]


async def _kill_in_the_middle(command: list[str], journal: Path) -> list[int]:
    """Run until some samples are there, kill it as nothing can be caught, and see which of its engines outlive it."""
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while len(_samples(_lines(journal))) < _WANTED:
        assert process.returncode is None, "it ended by itself"
        await asyncio.sleep(0.02)
    engines = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    _, alive = await asyncio.to_thread(psutil.wait_procs, engines, 30)
    for stray in alive:
        stray.kill()
    return [stray.pid for stray in alive]


@pytest.fixture(scope="session")
async def story(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Story:
    folder = tmp_path_factory.mktemp("profile")
    out = folder / "profiles" / "tiny.json"
    journal, kept = journal_path(out), folder / "journal"
    command = _command(tiny_model, out)
    left_behind = await _kill_in_the_middle(command, journal)
    killed = _samples(_lines(journal))
    kept.hardlink_to(journal)  # its lines outlive the name, which the finished run removes
    second = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = (await second.communicate())[0].decode()
    assert second.returncode == 0, text[-3000:]
    lines = _lines(kept)
    third = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
    states = [line for line in lines if isinstance(line, State)]
    return Story(out, load_profile(out), left_behind, text, third, killed, _samples(lines), states)


pytestmark = pytest.mark.timeout(400)


async def test_the_killed_run_left_no_engine_and_the_finished_one_no_journal(story: Story) -> None:
    assert story.left_behind == []
    assert not journal_path(story.out).exists()
    assert [path.name for path in story.out.parent.iterdir()] == ["tiny.json"]


async def test_no_point_that_was_there_is_measured_again(story: Story) -> None:
    assert len(story.killed) >= _WANTED
    assert story.ended[: len(story.killed)] == story.killed, "nothing of the first run is lost or changed"
    first, second = {line.pid for line in story.killed}, {line.pid for line in story.ended[len(story.killed) :]}
    assert len(first) == len(second) == 1
    assert first != second
    had: dict[str, list[float]] = {}
    for line in story.killed:
        had.setdefault(line.spot, []).append(line.seconds)
    complete = {spot for spot, seconds in had.items() if QUICK_PLAN.done(seconds)}
    again = {line.spot for line in story.ended[len(story.killed) :]}
    assert again.isdisjoint(complete)
    assert max(Counter(line.spot for line in story.ended).values()) <= QUICK_PLAN.most


async def test_the_profile_holds_the_samples_of_both_runs(story: Story) -> None:
    points = story.profile.points
    rows = [*points.prefill, *points.decode, *points.mixed, *points.kv]
    assert sum(row.samples for row in rows) == len(story.ended)
    assert len(rows) == len({line.spot for line in story.ended})
    assert all(row.seconds > 0 for row in rows)


async def test_a_third_run_measures_nothing(story: Story) -> None:
    assert story.third.returncode == 0
    assert "has all points" in story.third.stderr


async def test_the_profile_says_what_it_is_of(story: Story) -> None:
    meta = story.profile.meta
    story.profile.check(model="tiny", theta=1, block_size=32)
    assert meta.kv_bytes_per_token == 4096
    assert meta.mode == "quick"
    assert meta.weights
    assert meta.weights.startswith("sha256:")
    assert meta.config_id
    seen = {line for state in story.states for line in state.noise}
    assert {line for line in meta.noise if "not measured" not in line} <= seen


async def test_every_function_is_measured_and_grows(story: Story) -> None:
    points, cost = story.profile.points, story.profile.cost_model()
    # A history point counts only if the engine's own figures say that all of it was cached.
    assert {p.l_hist for p in points.prefill} == {0, 512}
    assert {p.direction for p in points.kv} == {"history", "increment"}
    assert {p.tokens for p in points.kv if p.direction == "increment"} >= {64, 512, 1024}
    assert {p.chunk for p in points.mixed} == {16, 64, 200, 512}
    assert {p.batch for p in points.decode} == {1, 2, 4, 8, 16}
    assert cost.t_pre(0, 1024, 1) > cost.t_pre(0, 16, 1) > 0
    assert cost.t_pre(512, 512, 1) > cost.t_pre(512, 16, 1)
    assert 0 < cost.t_kv(64, 1, 1, "history") <= cost.t_kv(1024, 1, 1, "history")
    assert cost.t_mixed(4, 600, 512, 1) > cost.t_mixed(4, 600, 64, 1) >= cost.t_dec(4, 600, 1) > 0
    for function in ("T_pre", "T_dec", "T_mixed", "T_kv history", "T_kv increment"):
        assert function in story.text


async def test_output_that_is_no_terminal_has_no_bar(story: Story) -> None:
    assert "\x1b" not in story.text
    assert "━" not in story.text
    assert 2 <= story.text.count(" points: ") <= 40
