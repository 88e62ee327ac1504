"""Dynamo's real frontend and ampd's real Coordinator as the launcher starts them: nothing listens beyond loopback."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
import pytest
from graphs import make_graph, stand_in_plan

from ampd.errors import SetupError
from ampd.launch.models import resolve_model
from ampd.launch.plan import plan
from ampd.launch.progress import Quiet
from ampd.launch.readiness import serves_model, wait_graph
from ampd.launch.running import child_environment, make_layout, remove_run_dir, settle, write_run_dir
from ampd.launch.supervisor import Supervisor


def listening(pids: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """(process name, address) of every TCP socket that listens."""
    for name, pid in pids.items():
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    yield name, connection.laddr.ip


async def test_nothing_listens_beyond_loopback(runs: Path, notes: Path) -> None:
    graph = settle(make_graph(Path("tiny")))
    resolve_model(make_graph(Path("tiny")))
    run_dir = runs / "run"
    run_dir.mkdir()
    layout = make_layout(graph, run_dir)
    write_run_dir(graph, layout)
    stand_ins = {spec.name: spec for spec in stand_in_plan(notes, {})(graph, layout) if spec.kind == "worker"}
    specs = [stand_ins.get(spec.name, spec) for spec in plan(graph, layout)]
    supervisor = Supervisor(run_dir, child_environment(), Quiet())
    try:
        await supervisor.start(specs, 60)
        url = f"http://127.0.0.1:{graph.frontend.port}"
        # No worker serves, so the model is listed but an answer does not come; waiting for one says why.
        with pytest.raises(SetupError, match="^the graph does not answer after 5 s: HTTP 5"):
            await wait_graph(url, "m", 5)
        assert await serves_model(url, "m")
        assert not await serves_model(url, "another")
        found = list(listening(supervisor.pids))
        assert {"frontend", "coordinator-0"} <= {name for name, _ in found}
        assert [(name, ip) for name, ip in found if not ipaddress.ip_address(ip).is_loopback] == []
    finally:
        await supervisor.stop()
        remove_run_dir(run_dir, keep_logs=False)
