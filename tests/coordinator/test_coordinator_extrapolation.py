"""A decision whose T_pre lies outside what the profile measured says so, in the answer, the log and the metrics."""

from __future__ import annotations

import json

import pytest
from driver import Driver, fresh_tokens
from sim_cluster import SimCluster
from sim_model import make_graph

from ampd.cost_model import CoarseCostModel, PiecewiseCostModel, extrapolates
from ampd.cost_model.functions import DecodeFit, FitError, PrefillFit, Segment, TransferFit
from ampd.cost_model.scaled import ScaledCostModel
from ampd.state.base import StateStore

_ERROR = FitError(heldout_median=0.0, heldout_p95=0.0, points=1)


def measured(theta: int) -> PiecewiseCostModel:
    """Measured with 8 to 40 new tokens after at most 30 of history."""
    pre = PrefillFit(theta, 0.001, 0.0, [Segment(None, 0.0001)], l_hist=(0, 30), l_incr=(8, 40), error=_ERROR)
    dec = DecodeFit(theta, 0.01, 0.0, [Segment(None, 0.001)], batch=(1, 8), context=(1, 1000), error=_ERROR)
    moves = [TransferFit(theta, theta, way, 0.01, [Segment(None, 0.001)], (1, 1000), _ERROR) for way in ("history", "increment")]
    return PiecewiseCostModel([pre], [dec], moves)


@pytest.mark.parametrize("path", ["local", "remote"])
async def test_decisions_outside_the_measured_range_are_flagged(
    cluster: SimCluster, store: StateStore, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ampd.coordinator.round")
    driver = Driver(cluster, store, make_graph(policy={"force": [path]}), cost=ScaledCostModel(measured(1), 2.0))
    tokens = fresh_tokens(24)
    flags = []
    for more in (12, 12, 0):  # histories of 0, 24 and 40 tokens, of which the last is beyond 30
        answer = await driver.correct(tokens)
        flags.append((answer.ampd["l_hist"], answer.ampd["extrapolated"]))
        tokens += answer.tokens + fresh_tokens(more)
    assert flags == [(0, False), (24, False), (40, True)]
    logged = [json.loads(r.getMessage()) for r in caplog.records if '"ampd.route"' in r.getMessage()]
    assert [line["extrapolated"] for line in logged] == [False, False, True]
    assert driver.coordinator.counters.registry.get_sample_value("ampd_cost_model_extrapolated_total") == 1


async def test_what_the_prefill_worker_holds_is_not_computed(store: StateStore) -> None:
    """The session has to move: 60 tokens are more than was ever measured, the 30 that the prefill worker lacks are not."""
    cluster = SimCluster(store)
    for id, role in ((11, "prefill"), (21, "decode"), (22, "decode")):
        await cluster.add(id, role)
    driver = Driver(cluster, store, make_graph(policy={"force": ["remote"]}), cost=measured(1))
    tokens = fresh_tokens(30)
    answer = await driver.correct(tokens)
    await cluster.report(cluster.workers[answer.ampd["decode_worker"]], draining=True)
    again = await driver.correct(tokens + answer.tokens + fresh_tokens(27))
    assert (again.ampd["l_hist"], again.ampd["held"], again.ampd["extrapolated"]) == (0, 30, False)
    other = await driver.correct(fresh_tokens(60), "other")
    assert (other.ampd["held"], other.ampd["extrapolated"]) == (0, True)


def test_the_range_is_the_profiles() -> None:
    cost = measured(2)
    assert not extrapolates(cost, 30, 40, 2)
    assert extrapolates(cost, 31, 40, 2)
    assert extrapolates(cost, 30, 41, 2)
    assert extrapolates(ScaledCostModel(cost, 10.0), 0, 7, 2)
    assert not extrapolates(CoarseCostModel(), 10**6, 1, 2), "it was measured nowhere"
