"""The stored forms that all stores share: a worker's running figures, its windows, and its view."""

from __future__ import annotations

import math

import msgspec

from ampd.policy.types import WorkerView
from ampd.state.base import WorkerRow


class Stats(msgspec.Struct, array_like=True):
    """What the store itself keeps beside a worker's row. `at` is its time of the last heartbeat; an empty window's mean is -1."""

    at: float
    tasks: int = 0
    queued_s: float = 0.0
    promised: int = 0  # since the last heartbeat
    promised_before: int = 0  # in the heartbeat interval before that
    ttft_s: float = -1.0
    itl_s: float = -1.0


class Bucket(msgspec.Struct, array_like=True):
    """One second of a window: sums in seconds, and counts."""

    second: int
    ttft_sum: float = 0.0
    ttft_count: int = 0
    itl_sum: float = 0.0
    itl_count: int = 0


def fresh(buckets: list[Bucket], now: float, window_s: float) -> list[Bucket]:
    """The buckets still inside the window: the last `window_s` whole seconds, the running one included."""
    oldest = math.floor(now) - math.ceil(window_s) + 1
    return [b for b in buckets if b.second >= oldest]


def fold(stats: Stats, buckets: list[Bucket]) -> None:
    """Set the windowed means."""
    ttft_count = sum(b.ttft_count for b in buckets)
    itl_count = sum(b.itl_count for b in buckets)
    stats.ttft_s = sum(b.ttft_sum for b in buckets) / ttft_count if ttft_count else -1.0
    stats.itl_s = sum(b.itl_sum for b in buckets) / itl_count if itl_count else -1.0


def worker_view(row: WorkerRow, stats: Stats) -> WorkerView:
    """A worker as policies see it."""
    return WorkerView(
        id=row.id,
        role=row.role,
        epoch=row.epoch,
        theta=row.theta,
        ttft_s=stats.ttft_s if stats.ttft_s >= 0 else None,
        itl_s=stats.itl_s if stats.itl_s >= 0 else None,
        queued_s=stats.queued_s + row.running_s,
        queued_tasks=stats.tasks,
        running=row.running,
        kv_total=row.kv_total,
        kv_free=row.kv_free,
        kv_pinned=row.kv_pinned,
        kv_promised=stats.promised + stats.promised_before,
        draining=row.draining,
        context=row.context,
        link_s=row.link_s,
        kv_written=row.kv_written,
        t_pre_factor=row.t_pre_factor,
        t_dec_factor=row.t_dec_factor,
        t_mixed_factor=row.t_mixed_factor,
        t_kv_factor=row.t_kv_factor,
    )
