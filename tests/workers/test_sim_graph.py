"""A served graph of simulated workers, several in a process: real frontend, Coordinator, Redis and Dynamo."""

from __future__ import annotations

import asyncio
import os
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sim_engines import answer_to, prompt

from ampd.bench.client import Client
from ampd.bench.rounds import RoundFacts, RoundRequest
from ampd.config import build_graph
from ampd.launch import RunningGraph, running_graph
from ampd.launch.plan import private_discovery
from ampd.messages import PrefillRequest, PrefillResult, decode, encode
from ampd.policy.types import ClusterView
from ampd.state.factory import open_store
from ampd.workers.engines.sim_text import words

BLOCK = 32


class SimGraph:
    """The running graph, and what tests ask of it."""

    def __init__(self, running: RunningGraph, client: Client, tokenizer: Path) -> None:
        self.running, self.client, self._words = running, client, words(tokenizer)

    async def session(self, name: str, rounds: int, seed: int) -> list[RoundFacts]:
        """Play a session; every answer has to be the right one."""
        tokens: list[int] = []
        facts = []
        for number in range(1, rounds + 1):
            tokens += prompt(150, seed + number)
            request = RoundRequest(
                number=number, max_tokens=9, prompt=list(tokens), session=name, final=number == rounds, extra={"ignore_eos": True}
            )
            result = await self.client.send(request)
            assert result.error is None, result.error
            assert result.token_ids == answer_to(tokens, 9, BLOCK, self._words)
            assert result.facts is not None
            facts.append(result.facts)
            tokens += result.token_ids
        return facts

    async def view(self) -> ClusterView:
        state = self.running.graph.state.model_copy(update={"url": self.running.state_url})
        store = open_store(self.running.graph.model_copy(update={"state": state}))
        await store.connect()
        try:
            return await store.view()
        finally:
            await store.close()

    async def metrics(self, process: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
        """Samples of ampd's metrics by name, then by labels."""
        url = self.running.metrics[process]
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode())
        found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith("ampd_"):
                    found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return found


@pytest.fixture(scope="module")
async def served(tiny_model: Path) -> AsyncIterator[SimGraph]:
    """Three prefill workers in one process, of which the third dies with its third job, and four decode workers in two."""
    both: dict[str, Any] = {"engine": "sim"}
    sim = {"kv_tokens": 50_000, "speed": 10.0, "kv_bytes_per_token": 1000}
    dying = {"failures": {"replicas": [2], "die_after_jobs": 2}}
    graph = build_graph(
        {
            "name": "sims",
            "model": {"path": str(tiny_model), "served_name": "m", "block_size": BLOCK},
            "policy": {"force": ["remote", "local", "remote"]},
            "state": {"heartbeat_s": 0.2, "stale_after_s": 1.0},
            "transport": {"read_grace_s": 1.0},
            "workers": [
                {"name": "p", "role": "prefill", "replicas": 3, "sim": {**sim, **dying}, **both},
                {"name": "d", "role": "decode", "replicas": 4, "sim": {**sim, "per_process": 2}, **both},
            ],
        }
    )
    async with running_graph(graph) as running, Client(running.url, "m", timeout_s=60) as client:
        yield SimGraph(running, client, tiny_model)


async def test_every_replica_is_a_worker_of_its_own(served: SimGraph) -> None:
    assert [name for name in served.running.pids if name[:2] in ("p-", "d-")] == ["p-0", "d-0", "d-2"]
    view = await served.view()
    assert (len(view.prefill), len({w.id for w in view.prefill})) == (3, 3)
    assert (len(view.decode), len({w.epoch for w in view.decode})) == (4, 4)


async def test_a_decode_worker_prefills_for_others(served: SimGraph) -> None:
    worker = (await served.view()).decode[0].id
    request = PrefillRequest(
        id="deflected",
        session="s",
        round=1,
        token_ids=prompt(300),
        l_hist=0,
        history=None,
        estimate_s=0.1,
        elapsed_s=0.0,
        ttft_target_s=1.0,
    )
    script = Path(__file__).with_name("ask_worker.py")
    planes = {**private_discovery(served.running.run_dir), "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1", "DYN_LOG": "error"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        f"{served.running.namespace}.decode.prefill",
        str(worker),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **planes},
    )
    out, _ = await asyncio.wait_for(process.communicate(encode(request)), 30)
    result = decode(PrefillResult, out)
    assert (result.handle.worker, result.handle.tokens) == (worker, 300)
    assert result.kv_written >= 300


async def test_sessions_are_served_right_while_one_worker_of_a_process_dies(served: SimGraph) -> None:
    """The third prefill worker dies under them: its rounds go on locally, the other two and the process go on."""
    histories = await asyncio.gather(*(served.session(f"s{i}", 6, 100 * i) for i in range(8)))
    paths = [[facts.path for facts in history] for history in histories]
    assert all(path[1] == path[4] == "local" for path in paths)
    assert sum(path.count("remote") for path in paths) > 20
    assert all(len({facts.decode_worker for facts in history}) == 1 for history in histories)
    read = [facts for history in histories for facts in history if facts.path == "remote" and facts.round > 1]
    assert sum(facts.history_read_tokens for facts in read) > 0
    assert sum(facts.increment_read_tokens for facts in read) > 0
    async with asyncio.timeout(20):
        while len((await served.view()).prefill) != 2:
            await asyncio.sleep(0.1)
    served.running.supervisor.check()  # no process has ended
    log = (served.running.run_dir / "logs" / "p-0.log").read_text()
    assert "a worker is lost, 2 of this process are left" in log


async def test_a_process_shows_the_metrics_of_all_its_workers(served: SimGraph) -> None:
    ids = {str(w.id) for w in (await served.view()).decode}
    named: dict[str, str] = {}
    read = issued = 0.0
    for process, names in (("d-0", ["d-0", "d-1"]), ("d-2", ["d-2", "d-3"])):
        found = await served.metrics(process)
        infos = [dict(labels) for labels in found["ampd_worker_info"]]
        assert [info["worker"] for info in infos] == names
        assert set(found["ampd_prefill_queue_depth"]) == {(("worker", name),) for name in names}
        named |= {info["id"]: info["worker"] for info in infos}
        read += found.get("ampd_kv_read_bytes_total", {}).get((("direction", "increment"),), 0.0)
        issued += found["ampd_kv_lease_issued_total"][()]
    assert set(named) == ids
    assert read > 0
    assert issued >= 40  # a pin for each round of the sessions but their last
