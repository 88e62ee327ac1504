"""Rows that the tests share."""

from __future__ import annotations

from typing import Any

from ampd.messages import Handle, pack_params
from ampd.state.base import QueueEntry, WorkerRow
from ampd.state.settings import StoreSettings

# A busy test machine may stall for long; only the tests about deadlines set short ones.
SETTINGS = StoreSettings(deadline_s=10.0, stale_after_s=0.5, reap_after_s=1.0, window_s=2.0, idle_ttl_s=60.0)

BIG = 2**64 - 3  # worker ids are unsigned 64-bit: no double holds this one


def worker(id: int = BIG, role: Any = "decode", epoch: str = "e1", **fields: Any) -> WorkerRow:
    return WorkerRow(id=id, role=role, epoch=epoch, theta=1, **fields)


def handle(ref: str = "pin-1", epoch: str = "e1", worker: int = BIG) -> Handle:
    return Handle(worker, epoch, "s", ref, 64, "ab" * 8, 1234.5, pack_params({"remote_block_ids": [1, 2], "remote_port": 5600}))


def entry(id: str, cost_s: float = 1.0, **fields: Any) -> QueueEntry:
    return QueueEntry(id, "s", 2, 320, 17, cost_s, 2.0, 1000.25, **fields)
