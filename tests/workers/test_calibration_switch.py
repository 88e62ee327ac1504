"""`policy.calibrate`, as a worker process reads it."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from sim_engines import engines, graph

from ampd.state.memory import MemoryStore
from ampd.workers.costs import peer_theta, profiled_cost
from ampd.workers.endpoints import Departures
from ampd.workers.judge import Predictor
from ampd.workers.metrics import WorkerMetrics
from ampd.workers.service import _Process, _worker
from ampd.workers.worker import WorkerIdentity


@pytest.mark.parametrize(("calibrate", "factor"), [(True, 2.0), (False, 1.0)])
async def test_a_process_calibrates_its_workers_unless_told_not_to(tmp_path: Path, calibrate: bool, factor: float) -> None:
    made = graph(tmp_path, policy={"calibrate": calibrate})
    group = made.workers[0]
    cost = profiled_cost(made, group)
    assert cost is not None
    predictor = Predictor(cost, group.tensor_parallel, peer_theta(made, group))
    process = _Process(
        made, group, "n", MemoryStore(), asyncio.Event(), lambda: None, WorkerMetrics(), predictor, Departures(), 1, 1
    )
    async with engines(made, ("p", 0)) as (engine,):
        worker, reporter = _worker(process, WorkerIdentity(1, "prefill", "e", 1), engine)
        process.metrics.watch("p-0", worker, reporter)
        worker.judge.clock = itertools.count().__next__
        for _ in range(60):
            worker.judge.judged("t_pre", 0.1, 0.2)
        assert worker.row().t_pre_factor == pytest.approx(factor, rel=0.05)
        assert _worker(process, WorkerIdentity(2, "prefill", "f", 1), engine)[0].row().t_pre_factor == 1.0, "each learns for itself"
        text = process.metrics.text()
    assert f'ampd_cost_model_factor{{fn="t_pre",worker="p-0"}} {worker.judge.factor("t_pre")}' in text
    assert 'ampd_cost_model_error_ratio_count{fn="t_pre"} 60.0' in text
