"""Outcomes made by hand: a few rounds whose figures are known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ampd.simulator.types import PATHS, Outcome, Records, TraceRound, TraceSession


@dataclass(frozen=True)
class Made:
    """One round that ended. `itl` None: it had one token."""

    session: int
    number: int
    arrived: float
    ttft: float
    itl: float | None = 0.01
    itl_p95: float | None = None  # as `itl` by default
    output: int = 11
    path: str = "remote"
    worker: int = 0
    decode: int = 1
    queued: float = 0.0
    moved: float = 0.0

    @property
    def ended(self) -> float:
        return self.arrived + self.ttft + (self.itl or 0.0) * (self.output - 1)


def outcome(rounds: Sequence[Made], unfinished: Sequence[tuple[float, int, int]] = (), ended_s: float = 100.0) -> Outcome:
    rows = sorted(rounds, key=lambda r: r.ended)

    def ints(values: Sequence[int]) -> np.ndarray:
        return np.array(values, dtype=np.int64)

    def floats(values: Sequence[float | None]) -> np.ndarray:
        return np.array([np.nan if v is None else v for v in values], dtype=np.float64)

    records = Records(
        session=ints([r.session for r in rows]), number=ints([r.number for r in rows]),
        arrived_s=floats([r.arrived for r in rows]), ttft_s=floats([r.ttft for r in rows]), itl_s=floats([r.itl for r in rows]),
        itl_p95_s=floats([r.itl if r.itl_p95 is None else r.itl_p95 for r in rows]), ended_s=floats([r.ended for r in rows]),
        prompt=ints([100] * len(rows)), l_hist=ints([0] * len(rows)), held=ints([0] * len(rows)),
        output=ints([r.output for r in rows]), path=ints([PATHS.index(r.path) for r in rows]),
        worker=ints([r.worker for r in rows]), decode=ints([r.decode for r in rows]),
        queued_s=floats([r.queued for r in rows]), moved_s=floats([r.moved for r in rows]),
    )  # fmt: skip
    return Outcome(records=records, unfinished=unfinished, ended_s=ended_s, counts={}, busy_s={0: 1.0, 1: 1.0})


def sessions(*rounds: int, output: int = 11) -> list[TraceSession]:
    """One session for each number of rounds, a second apart."""
    one = TraceRound(prompt=100, history=0, output=output)
    return [TraceSession(f"s{i}", (one,) * number, arrives_s=float(i)) for i, number in enumerate(rounds)]
