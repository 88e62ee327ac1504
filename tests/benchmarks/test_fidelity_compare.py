"""The comparison of `benchmarks.fidelity`: a recording that the simulator made itself agrees with it in everything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ampd.config import Graph, load_graph
from ampd.simulator.types import PATHS, Outcome
from benchmarks.fidelity_compare import Recording, compare, replay
from benchmarks.fidelity_load import Observed, draw_sessions

ROOT = Path(__file__).parents[2]
PROFILE = ROOT / "configs" / "profiles" / "smollm2-135m-cpu.json"


@pytest.fixture(scope="module")
def graph() -> Graph:
    return load_graph(ROOT / "configs" / "small-cpu.yaml", ["policy.name=predictive"])


@pytest.fixture(scope="module")
def blank() -> Recording:
    return Recording(1.0, draw_sessions(12, 1.0, seed=3), [], {})


def observed(outcome: Outcome) -> list[Observed]:
    r = outcome.records
    return [
        Observed(
            session=int(r.session[i]), number=int(r.number[i]), arrived_s=float(r.arrived_s[i]), ttft_s=float(r.ttft_s[i]),
            itl_s=float(r.itl_s[i]), path=PATHS[r.path[i]], reason="", prompt=int(r.prompt[i]), l_hist=int(r.l_hist[i]),
            output=int(r.output[i]), queue_s=0.0, read_s=0.0,
        )
        for i in range(len(r))
    ]  # fmt: skip


def test_what_the_simulator_recorded_itself_agrees(graph: Graph, blank: Recording) -> None:
    outcome = replay(graph, PROFILE, blank, plain=True)
    rounds = observed(outcome)
    assert len(rounds) == sum(len(s.rounds) for s in blank.sessions)
    row = compare(graph, Recording(1.0, blank.sessions, rounds, {}), outcome)
    assert set(row["figures"]) == {f"{name} {figure}" for name in ("TTFT", "ITL") for figure in ("mean", "p50", "p95")}
    assert all(real == simulated > 0 for real, simulated in row["figures"].values())
    assert row["path_agreement"] == 1
    assert row["attained"][0] == row["attained"][1]


def test_each_role_is_as_slow_as_its_workers_said(graph: Graph, blank: Recording) -> None:
    plain = replay(graph, PROFILE, blank, plain=True)
    slow = Recording(1.0, blank.sessions, [], {"decode": {"t_dec": 2.0, "t_mixed": 2.0}})
    assert np.nanmedian(replay(graph, PROFILE, slow, plain=False).records.itl_s) > 1.8 * np.nanmedian(plain.records.itl_s)
    assert replay(graph, PROFILE, slow, plain=True).records.itl_s == pytest.approx(plain.records.itl_s, nan_ok=True)
