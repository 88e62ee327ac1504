"""The Coordinator's metrics, in Prometheus form; docs/metrics.md is their contract."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from ampd.coordinator.round import Round

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
_SHORT = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01)
_TOOLS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

_MOST_SESSIONS = 50_000  # whose last round's end is remembered, for the tool gaps
_TRIGGERS = ("tool_result", "user_message")


class _Labelled:
    """The children of a metric by label values: looking one up in prometheus_client costs as much as counting it."""

    def __init__(self, metric: Counter | Histogram) -> None:
        self._metric = metric
        self._children: dict[tuple[str, ...], Counter | Histogram] = {}

    def _child(self, labels: tuple[str, ...]) -> Counter | Histogram:
        child = self._children.get(labels)
        if child is None:
            child = self._children[labels] = self._metric.labels(*labels) if labels else self._metric
        return child

    def inc(self, *labels: str) -> None:
        child = self._child(labels)
        assert isinstance(child, Counter)
        child.inc()

    def observe(self, value: float, *labels: str) -> None:
        child = self._child(labels)
        assert isinstance(child, Histogram)
        child.observe(value)


class _Total(Collector):
    """A counter that somebody else counts."""

    def __init__(self, name: str, text: str, value: Callable[[], float]) -> None:
        self._name, self._text, self._value = name, text, value

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily(self._name, self._text, value=self._value())


class Counters:
    """Totals since the start of the process. Each Coordinator has a registry of its own.

    `running` tells how many rounds run now.
    """

    def __init__(self, clock: Callable[[], float], running: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._ended_at: OrderedDict[str, float] = OrderedDict()
        self._decisions = self._counter("route_decisions", "Routing decisions", "path", "reason", "round")
        self._extrapolated = self._counter("cost_model_extrapolated", "Decisions with a T_pre outside the profile's measured range")
        self._route = self._histogram("route_duration_seconds", "The policy's own time for a decision", _SHORT)
        self._read = self._histogram("state_read_duration_seconds", "Opening a round in the state store", _SHORT)
        self._degraded = self._counter("state_degraded", "Rounds opened without the state store")
        self._rounds = self._counter("rounds", "Rounds that are over", "outcome")
        self._ttft = self._histogram("ttft_seconds", "TTFT of a round", _SECONDS, "round", "path")
        self._itl = self._histogram("itl_seconds", "Mean ITL of a round", _GAPS)
        self._attained = self._counter("slo_attained", "Rounds within their own target", "slo")
        self._missed = self._counter("slo_missed", "Rounds beyond their own target", "slo")
        self._rebinds = self._counter("session_rebinds", "Sessions moved to another decode worker", "cause")
        self._drift = self._counter("prefix_drift", "Rounds whose client had rewritten the session's context")
        self._recomputes = self._counter("kv_recomputes", "Rounds whose promised KV was not used", "cause")
        self._gap = self._histogram("tool_gap_seconds", "From a session's answer to its next round", _TOOLS, "trigger")
        self.bindings = Gauge("ampd_session_bindings", "Sessions bound, in all of the graph", registry=self.registry)
        running_now = Gauge("ampd_rounds_running", "Rounds under way", registry=self.registry)
        running_now.set_function(running)

    def _counter(self, name: str, text: str, *labels: str) -> _Labelled:
        return _Labelled(Counter(f"ampd_{name}", text, labels, registry=self.registry))

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> _Labelled:
        return _Labelled(Histogram(f"ampd_{name}", text, labels, registry=self.registry, buckets=buckets))

    def show_slow(self, value: Callable[[], float]) -> None:
        """Show how many openings the state store has answered late."""
        self.registry.register(_Total("ampd_state_slow", "Openings that the state store answered late", value))

    def opened(self, round: Round) -> None:
        """A round was opened."""
        self._read.observe(round.read_s)
        if round.degraded:
            self._degraded.inc()
        if round.history.rewritten:
            self._drift.inc()
        if round.key is not None and (ended_at := self._ended_at.pop(round.key.id, None)) is not None:
            trigger = round.ask.trigger
            self._gap.observe(round.arrived_at - ended_at, trigger if trigger in _TRIGGERS else "other")

    def decided(self, round: Round, seconds: float) -> None:
        """A decision was made, which took so long."""
        self._route.observe(seconds)
        if round.decision is not None:
            self._decisions.inc(round.decision.path, round.decision.reason, _kind(round))
        if round.extrapolated:
            self._extrapolated.inc()

    def ended(self, round: Round, outcome: str) -> None:
        """A round is over: served, cancelled, abandoned, refused or failed."""
        self._rounds.inc(outcome)
        if round.rebound is not None:
            self._rebinds.inc(round.rebound)
        if round.stats is None or round.decision is None:
            return
        cause = round.stats.recompute or (round.prefilled.recompute if round.prefilled is not None else None)
        if cause is not None:
            self._recomputes.inc(cause)
        self._ttft.observe(round.stats.ttft_s, _kind(round), round.decision.path)
        if round.stats.tokens_out > 1:
            self._itl.observe(round.stats.itl_s)
        self._compare_targets(round)
        if round.key is not None and not round.ask.final:
            self._ended_at[round.key.id] = self._clock()
            if len(self._ended_at) > _MOST_SESSIONS:
                self._ended_at.popitem(last=False)

    def _compare_targets(self, round: Round) -> None:
        assert round.stats is not None
        ttft = round.stats.ttft_s <= round.ask.ttft_target_s
        itl = round.stats.itl_s <= round.ask.itl_target_s
        for slo, met in (("ttft", ttft), ("itl", itl), ("round", ttft and itl)):
            (self._attained if met else self._missed).inc(slo)

    def text(self) -> str:
        """All metrics in the text format."""
        return generate_latest(self.registry).decode()


def _kind(round: Round) -> str:
    return "initial" if round.number == 1 else "incremental"
