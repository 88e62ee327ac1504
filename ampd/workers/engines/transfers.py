"""Totals of the KV that an engine has read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TransferTotals:
    """KV read by an engine since its start."""

    reads: int = 0
    bytes: int = 0
    seconds: float = 0.0
    failed: int = 0
    expired_pins: int = 0
