"""The metrics of a worker process, in Prometheus form; docs/metrics.md is the contract.

Workers of one process share it. Only what differs from worker to worker carries the label `worker`, `<group>-<replica>`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ampd.cost_model.calibration import FUNCTIONS, CostFunction
from ampd.policy.reordering import Reordering
from ampd.policy.types import Direction, Role
from ampd.workers.engines.base import KvFacts
from ampd.workers.reporter import Reporter
from ampd.workers.worker import Worker

_REORDER = (1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 1e-2)
_READ = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_RATIO = (0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0)


@dataclass(frozen=True, slots=True)
class _Watched:
    name: str
    worker: Worker
    reporter: Reporter


class WorkerMetrics:
    """Totals since the start of the process. Implements `ampd.workers.worker.Observer`."""

    def __init__(self) -> None:
        self._watched: list[_Watched] = []
        self.registry = registry = CollectorRegistry()
        self._reorder = Histogram("ampd_reorder_duration_seconds", "One dequeue's choice", registry=registry, buckets=_REORDER)
        self._moves = Counter("ampd_reorder_moves", "Prefills overtaken by a later one", registry=registry)
        self._postponed = Gauge("ampd_postponed_max", "Most often that one prefill was overtaken", registry=registry)
        self._bytes = Counter("ampd_kv_read_bytes", "KV read from other workers", ["direction"], registry=registry)
        self._seconds = Histogram("ampd_kv_read_seconds", "A read of KV", ["direction"], registry=registry, buckets=_READ)
        self._fenced = Counter("ampd_kv_fence_rejected", "Handles refused", ["cause"], registry=registry)
        self._ratio = Histogram(
            "ampd_cost_model_error_ratio", "Predicted over measured seconds", ["fn"], registry=registry, buckets=_RATIO
        )
        self._most = 0
        self._ratios = {fn: self._ratio.labels(fn) for fn in FUNCTIONS}  # a look-up costs as much as a sample
        registry.register(self)

    def watch(self, name: str, worker: Worker, reporter: Reporter) -> None:
        """Show one worker's own figures from now on."""
        self._watched.append(_Watched(name, worker, reporter))

    def text(self) -> str:
        """All metrics in the text format."""
        return generate_latest(self.registry).decode()

    # ---- what the workers observe

    def reordered(self, chosen: Reordering, postponed: int, seconds: float) -> None:
        """A prefill was dequeued; `postponed` is how often the most postponed of those waiting has been overtaken."""
        self._reorder.observe(seconds)
        self._moves.inc(len(chosen.postponed))
        self._most = max(self._most, postponed)
        self._postponed.set(self._most)

    def fenced(self, cause: str) -> None:
        """See Observer."""
        self._fenced.labels(cause).inc()

    def read(self, direction: Direction, facts: KvFacts, bytes_per_token: int) -> None:
        """See Observer."""
        if not facts.read_tokens:
            return
        self._bytes.labels(direction).inc(facts.read_tokens * bytes_per_token)
        self._seconds.labels(direction).observe(facts.read_s)

    def judged(self, fn: CostFunction, predicted_s: float, measured_s: float) -> None:
        """The profile's time of a task, without the worker's factor, and its own. See Judge."""
        self._ratios[fn].observe(predicted_s / measured_s)

    # ---- what is read off the workers at a scrape

    def collect(self) -> Iterator[Any]:
        """Gauges of each worker, and the pins of all."""
        depth = GaugeMetricFamily("ampd_prefill_queue_depth", "Prefills waiting for their turn", labels=["worker"])
        ttft = GaugeMetricFamily("ampd_window_ttft_seconds", "Mean TTFT of the window, as routing sees it", labels=["worker"])
        itl = GaugeMetricFamily("ampd_window_itl_seconds", "Mean ITL of the window, as routing sees it", labels=["worker"])
        factor = GaugeMetricFamily(
            "ampd_cost_model_factor", "Measured over predicted seconds, as routing multiplies by it", labels=["worker", "fn"]
        )
        info = GaugeMetricFamily("ampd_worker_info", "Who a worker is", labels=["worker", "id", "role"])
        for watched in self._watched:
            worker, seen = watched.worker, watched.reporter.seen
            depth.add_metric([watched.name], worker.queue.depth)
            info.add_metric([watched.name, str(worker.identity.id), worker.identity.role], 1)
            for fn in _COMPUTED[worker.identity.role] if worker.judge.predictor is not None else ():
                factor.add_metric([watched.name, fn], worker.judge.factor(fn))
            if seen is not None and seen.ttft_s is not None:
                ttft.add_metric([watched.name], seen.ttft_s)
            if seen is not None and seen.itl_s is not None:
                itl.add_metric([watched.name], seen.itl_s)
        yield from (depth, ttft, itl, factor, info, *self._leases())

    def _leases(self) -> Iterator[Any]:
        tables = [watched.worker.pins for watched in self._watched]
        yield GaugeMetricFamily("ampd_kv_lease_active", "Pins held for handles", sum(len(table) for table in tables))
        yield CounterMetricFamily("ampd_kv_lease_issued", "Pins that handles were made for", sum(t.issued for t in tables))
        for cause, what in _ENDS.items():
            yield CounterMetricFamily(f"ampd_kv_lease_{cause}", what, sum(table.ended[cause] for table in tables))


_COMPUTED: dict[Role, tuple[CostFunction, ...]] = {"prefill": ("t_pre", "t_kv"), "decode": FUNCTIONS}

_ENDS = {
    "released": "Pins ended by their session",
    "read": "Pins ended after another worker had claimed them",
    "expired": "Pins ended by their age",
    "shed": "Pins given up for room",
}
