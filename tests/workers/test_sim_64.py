"""The graph of 64 simulated workers that ships: its figures are those that its profile cites."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampd.config import load_graph
from ampd.cost_model import load_profile
from ampd.launch import preflight
from ampd.launch.plan import processes

GRAPH = Path(__file__).parents[2] / "configs" / "sim-64.yaml"


def test_the_graph() -> None:
    graph = load_graph(GRAPH)
    preflight.check_profile(graph)
    groups = [(group.role, group.engine, group.replicas) for group in graph.workers]
    assert groups == [("prefill", "sim", 32), ("decode", "sim", 32)]
    assert [len(processes(group)) for group in graph.workers] == [1, 1]
    assert graph.coordinator.replicas == 2


def test_its_profile_is_an_estimate_that_meets_its_points() -> None:
    graph = load_graph(GRAPH)
    profile = load_profile(graph.profile or "")
    model = profile.cost_model()
    assert profile.meta.source == "estimated"
    for prefill in profile.points.prefill:
        assert model.t_pre(prefill.l_hist, prefill.l_incr, 4) == pytest.approx(prefill.seconds, rel=0.01)
    for decode in profile.points.decode:
        assert model.t_dec(decode.batch, decode.context, 4) == pytest.approx(decode.seconds, rel=0.01)
    assert len(profile.points.prefill) == len(profile.points.decode) == 3
    sim = graph.workers[0].sim
    assert (sim.kv_bytes_per_token, sim.kv_tokens) == (profile.meta.kv_bytes_per_token, profile.meta.kv_capacity_tokens)
