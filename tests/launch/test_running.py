"""A graph's life: started in order, watched, stopped in order, nothing left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis
from graphs import make_graph

from ampd.errors import ComponentDied, ConfigError, SetupError
from ampd.launch import running_graph
from ampd.launch.plan import GRACE_S
from ampd.launch.preflight import find_redis_server
from ampd.launch.supervisor import Supervisor

StandIns = Callable[..., None]


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while alive(pid) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return not alive(pid)


class Heard:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.states: list[tuple[str, str]] = []

    def state(self, name: str, state: str, seconds: float) -> None:
        self.states.append((name, state))

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


async def test_starts_in_order_and_stops_in_order(model: Path, runs: Path, notes: Path, stand_ins: StandIns) -> None:
    stand_ins()
    heard = Heard()
    async with running_graph(make_graph(model), progress=heard) as run:
        pids = run.pids
        assert set(pids) == {"redis", "prefill-0", "decode-0", "frontend", "coordinator-0"}
        assert redis.Redis.from_url(run.state_url).ping()
        assert run.run_dir.stat().st_mode & 0o077 == 0
        assert run.graph.frontend.port > 0
    order = heard.states
    assert order.index(("redis", "ready")) < order.index(("prefill-0", "starting"))
    assert max(order.index((name, "ready")) for name in ("prefill-0", "decode-0", "frontend")) < order.index(
        ("coordinator-0", "starting")
    )
    stopped = notes.read_text().split()
    assert stopped[:2] == ["frontend", "coordinator-0"]
    assert set(stopped[2:]) == {"prefill-0", "decode-0"}
    assert order[-1] == ("redis", "stopped")
    assert not any(alive(pid) for pid in pids.values())
    assert list(runs.iterdir()) == []


async def test_two_graphs_beside_each_other(model: Path, runs: Path, stand_ins: StandIns) -> None:
    stand_ins()
    graph = make_graph(model)
    async with running_graph(graph) as one, running_graph(graph) as other:
        assert one.url != other.url
        assert one.namespace != other.namespace
        redis.Redis.from_url(one.state_url).set("k", "v")
        assert redis.Redis.from_url(other.state_url).get("k") is None


async def test_death_at_start_is_reported_with_its_last_words(model: Path, runs: Path, stand_ins: StandIns) -> None:
    stand_ins(decode_0=["--say", "core 99 does not exist", "--exit", "3"])
    with pytest.raises(ComponentDied, match=r"^decode-0 exited with code 3; .*\n(.*\n)*core 99 does not exist$") as error:
        async with running_graph(make_graph(model)):
            pytest.fail("must not serve")
    log = Path(str(error.value).split("(")[1].split(")")[0])
    assert "core 99" in log.read_text()
    run_dir = log.parent.parent
    assert list(runs.iterdir()) == [run_dir]
    assert list(run_dir.iterdir()) == [log.parent]  # logs, and nothing else


async def test_death_by_signal_is_named(model: Path, runs: Path, stand_ins: StandIns) -> None:
    stand_ins()
    async with running_graph(make_graph(model)) as run:
        os.kill(run.pids["prefill-0"], 9)
        with pytest.raises(ComponentDied, match="^prefill-0 was killed by SIGKILL"):
            await run.supervisor.wait_death()


async def test_each_death_is_told_once_and_the_rest_lives_on(model: Path, runs: Path, stand_ins: StandIns) -> None:
    stand_ins()
    async with running_graph(make_graph(model)) as run:
        for name in ("prefill-0", "coordinator-0"):
            os.kill(run.pids[name], 9)
            with pytest.raises(ComponentDied, match=f"^{name} "):
                await asyncio.wait_for(run.supervisor.wait_death(), 5)
        assert alive(run.pids["decode-0"])


async def test_a_process_can_be_started_again(model: Path, runs: Path, stand_ins: StandIns) -> None:
    stand_ins()
    async with running_graph(make_graph(model)) as run:
        first = run.pids
        os.kill(first["coordinator-0"], signal.SIGKILL)
        os.kill(first["decode-0"], signal.SIGKILL)  # its death keeps none from being started again
        assert await gone(first["coordinator-0"])
        assert await gone(first["decode-0"])
        for name in ("redis", "coordinator-0"):
            await run.supervisor.restart(name, 20)
        assert redis.Redis.from_url(run.state_url).ping()
        again = run.pids
        assert {name for name in first if first[name] != again[name]} == {"redis", "coordinator-0"}
        assert not alive(first["redis"])
        with pytest.raises(SetupError, match="^none-0 cannot be restarted: the graph has redis, "):
            await run.supervisor.restart("none-0", 1)
        changed = run.graph.model_copy(update={"drain_s": 0.5})
        await run.change(changed, ["prefill-0"], 20)
        assert "drain_s: 0.5" in (run.run_dir / "graph.yaml").read_text()
        again = run.pids
        assert first["prefill-0"] != again["prefill-0"]
    assert not any(alive(pid) for pid in again.values())


async def test_one_that_never_serves_is_named(model: Path, runs: Path, stand_ins: StandIns) -> None:
    stand_ins(decode_0=["--never-ready", "--say", "still loading"])
    with pytest.raises(SetupError, match=r"^decode-0 does not serve after 1 s; .*\n(.*\n)*still loading"):
        async with running_graph(make_graph(model), start_timeout_s=1.0):
            pytest.fail("must not serve")


async def test_stubborn_processes_and_their_helpers_are_killed(
    model: Path, runs: Path, tmp_path: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GRACE_S, "worker", 0.3)
    helper = tmp_path / "helper"
    stand_ins(decode_0=["--stubborn", "--helper", str(helper)], prefill_0=["--helper", str(tmp_path / "other")])
    async with running_graph(make_graph(model)) as run:
        pids = [*run.pids.values(), int(helper.read_text()), int((tmp_path / "other").read_text())]
        assert all(map(alive, pids))
    assert [pid for pid in pids if not await gone(pid)] == []


async def test_shared_memory_of_killed_processes_is_removed(
    model: Path, runs: Path, tmp_path: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GRACE_S, "worker", 0.3)
    stand_ins(decode_0=["--stubborn", "--shared-memory", str(tmp_path / "d")], prefill_0=["--shared-memory", str(tmp_path / "p")])
    async with running_graph(make_graph(model)) as run:
        blocks = [Path("/dev/shm") / (tmp_path / name).read_text() for name in ("d", "p")]
        assert all(block.exists() for block in blocks)
        os.kill(run.pids["prefill-0"], signal.SIGKILL)
    assert [block for block in blocks if block.exists()] == []


async def test_cancelled_start_leaves_nothing(model: Path, runs: Path, stand_ins: StandIns) -> None:
    stand_ins(decode_0=["--never-ready"])
    watched: list[Supervisor] = []

    async def run() -> None:
        async with running_graph(make_graph(model), watch=watched.append):
            pytest.fail("must not serve")

    task = asyncio.create_task(run())
    while not (watched and "decode-0" in watched[0].pids):
        await asyncio.sleep(0.02)
    pids = list(watched[0].pids.values())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(map(alive, pids))
    assert list(runs.iterdir()) == []


async def test_a_stop_is_not_cut_short_by_cancelling(model: Path, runs: Path, stand_ins: StandIns) -> None:
    stand_ins()
    pids: list[int] = []
    inside = asyncio.Event()

    async def run() -> None:
        async with running_graph(make_graph(model)) as run:
            pids.extend(run.pids.values())
            inside.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(run())
    await inside.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(map(alive, pids))
    assert list(runs.iterdir()) == []


@pytest.fixture
def own_redis(runs: Path) -> Iterator[str]:
    """URL of a Redis that is not the launcher's."""
    path = runs / "own.sock"
    server = subprocess.Popen([find_redis_server(), "--port", "0", "--unixsocket", path, "--save", ""], stdout=subprocess.DEVNULL)
    try:
        while not path.exists():
            time.sleep(0.02)
        yield f"unix://{path}"
    finally:
        server.terminate()
        server.wait()


async def test_only_some_components(model: Path, own_redis: str, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_ins()
    monkeypatch.setenv("DYN_NAMESPACE", "shared")
    async with running_graph(make_graph(model, state={"url": own_redis}), only=["decode"]) as run:
        assert set(run.pids) == {"decode-0"}
        assert run.namespace == "shared"
        assert run.state_url == own_redis


async def test_a_redis_of_the_users_own_takes_the_place_of_the_embedded_one(
    model: Path, own_redis: str, stand_ins: StandIns
) -> None:
    stand_ins()
    async with running_graph(make_graph(model, state={"url": own_redis})) as run:
        assert "redis" not in run.pids
        assert "AMPD_STATE__URL" not in psutil.Process(run.pids["decode-0"]).environ()


async def test_a_redis_that_does_not_answer(model: Path, runs: Path) -> None:
    with pytest.raises(SetupError, match="^state.url redis://127.0.0.1:1.*: cannot reach Redis"):
        async with running_graph(make_graph(model, state={"url": "redis://127.0.0.1:1"})):
            pytest.fail("must not serve")
    assert list(runs.iterdir()) == []


@pytest.mark.parametrize(
    ("only", "state", "words"),
    [
        (["decoed"], {"url": "redis://127.0.0.1:1"}, "--component decoed: the graph has redis, prefill, decode"),
        (["decode"], {}, "--component needs a Redis that the components share: set state.url"),
    ],
)
async def test_bad_component(model: Path, only: list[str], state: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        async with running_graph(make_graph(model, state=state), only=only):
            pytest.fail("must not serve")


async def test_children_do_not_see_configuration_variables(
    model: Path, runs: Path, stand_ins: StandIns, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their graph.yaml holds the variables' effect; seen again they would undo what the launcher settled."""
    stand_ins()
    monkeypatch.setenv("AMPD_MODEL__PATH", "demo")
    async with running_graph(make_graph(model)) as run:
        env = psutil.Process(run.pids["decode-0"]).environ()
        assert "AMPD_MODEL__PATH" not in env
        assert env["AMPD_STATE__URL"] == run.state_url
        assert env["TMPDIR"].startswith(str(run.run_dir))
