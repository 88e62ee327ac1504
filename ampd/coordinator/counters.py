"""The Coordinator's metrics, in Prometheus form; docs/requests.md explains the labels' values."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from ampd.coordinator.round import Round

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)


class Counters:
    """Totals since the start of the process. Each Coordinator has a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._decisions = Counter("ampd_route_decisions", "Routing decisions", ["path", "reason", "round"], registry=registry)
        self._rounds = Counter("ampd_rounds", "Rounds that are over", ["outcome"], registry=registry)
        self._rebinds = Counter("ampd_session_rebinds", "Sessions moved to another decode worker", ["cause"], registry=registry)
        self._drift = Counter("ampd_prefix_drift", "Rounds whose client had rewritten the session's context", registry=registry)
        self._recomputes = Counter("ampd_kv_recomputes", "Rounds whose promised KV was not used", ["cause"], registry=registry)
        self._degraded = Counter("ampd_state_degraded", "Rounds served without the state store", registry=registry)
        self._ttft = Histogram("ampd_ttft_seconds", "TTFT of a round", ["round", "path"], registry=registry, buckets=_SECONDS)
        self._itl = Histogram("ampd_itl_seconds", "Mean ITL of a round", registry=registry, buckets=_GAPS)

    def decided(self, round: Round) -> None:
        """A decision was made."""
        if round.decision is not None:
            self._decisions.labels(round.decision.path, round.decision.reason, _kind(round)).inc()

    def ended(self, round: Round, outcome: str) -> None:
        """A round is over: served, cancelled, abandoned, refused or failed."""
        self._rounds.labels(outcome).inc()
        if round.rebound is not None:
            self._rebinds.labels(round.rebound).inc()
        if round.history.rewritten:
            self._drift.inc()
        if round.degraded:
            self._degraded.inc()
        if round.stats is None or round.decision is None:
            return
        cause = round.stats.recompute or (round.prefilled.recompute if round.prefilled is not None else None)
        if cause is not None:
            self._recomputes.labels(cause).inc()
        self._ttft.labels(_kind(round), round.decision.path).observe(round.stats.ttft_s)
        if round.stats.tokens_out > 1:
            self._itl.observe(round.stats.itl_s)

    def text(self) -> str:
        """All metrics in the text format."""
        return generate_latest(self.registry).decode()


def _kind(round: Round) -> str:
    return "initial" if round.number == 1 else "incremental"
