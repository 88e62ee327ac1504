"""What an engine reports with each step."""

from __future__ import annotations

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from ampd.workers.engines.base import EngineLoad
from ampd.workers.engines.transfers import TransferTotals
from ampd.workers.kv.params import LOAD


class LoadRecorder(StatLoggerBase):  # type: ignore[misc]
    """Keeps the last load and the transfer totals. `kv_tokens` is the size of the KV pool."""

    def __init__(self) -> None:
        self.kv_tokens = 0
        self.load = EngineLoad()
        self.transfers = TransferTotals()

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0, **kwargs: Any
    ) -> None:
        """One step's figures."""
        if scheduler_stats is None:
            return
        connector = dict(scheduler_stats.kv_connector_stats or {})
        self.load = EngineLoad(
            running=scheduler_stats.num_running_reqs,
            waiting=scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs,
            kv_used=round(scheduler_stats.kv_cache_usage * self.kv_tokens),
            **connector.pop(LOAD, {}),
        )
        if connector:
            self._add(connector)

    def log_engine_initialized(self) -> None:
        """Nothing to log: the worker reports its start itself."""

    def _add(self, stats: dict[str, Any]) -> None:
        totals = self.transfers
        totals.reads += len(stats["bytes_transferred"])
        totals.bytes += sum(stats["bytes_transferred"])
        totals.seconds += sum(stats["transfer_duration"])
        totals.failed += sum(len(stats[name]) for name in ("num_failed_transfers", "num_failed_handshakes"))
        totals.expired_pins += len(stats["num_kv_expired_reqs"])
