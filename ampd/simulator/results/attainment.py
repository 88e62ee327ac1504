"""How well a simulation met its targets: attainment of rounds and sessions, latencies, where TTFT goes.

A round is attained when its TTFT and its mean ITL are within their targets, a session when all its rounds are. Beside it stands the
stricter rule of the 95th percentile of a round's ITL.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ampd.simulator.results.confidence import Interval, bootstrap_share
from ampd.simulator.types import PATHS, Floats, Ints, Outcome, Records, TraceSession

# A round later than this many times its TTFT target has been starved: orders that push late rounds last make such rounds.
STARVED = 10.0
WARM_UP_LIFETIMES = 2.5

_Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Window:
    """Counted are rounds that arrive, and sessions that end, in [start_s, end_s) of virtual time."""

    start_s: float = 0.0
    end_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Latency:
    """Of the rounds that ended, in seconds; NaN without any."""

    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What a window shows. Shares are of 1, NaN when nothing was counted. `parts_s`: mean seconds of TTFT spent waiting for a
    turn ("queue"), moving KV ("transfer"; not what overlapped with waiting) and in all else, computing above all ("compute").
    """

    rounds: int
    sessions: int
    attainment: float
    attainment_p95_itl: float
    session_attainment: float
    session_attainment_p95_itl: float
    ttft_share: float  # rounds whose TTFT is within its target, whatever their ITL
    itl_share: float
    very_late: float  # rounds later than STARVED times their TTFT target
    overdue: int  # of `rounds`, those that had not ended and could no longer be attained
    ttft: Latency
    itl: Latency
    shares: dict[str, float]  # by path
    parts_s: dict[str, float]

    def row(self) -> dict[str, float | int | None]:
        """The metric keys of a result row; None for what is not known."""
        row: dict[str, float | int | None] = {"rounds": self.rounds, "sessions": self.sessions}
        shares = ("attainment", "attainment_p95_itl", "session_attainment", "session_attainment_p95_itl", "very_late",
                  "ttft_share", "itl_share")  # fmt: skip
        row |= {name: getattr(self, name) for name in shares}
        for name, latency in (("ttft", self.ttft), ("itl", self.itl)):
            row |= {f"{name}_{key}": getattr(latency, key) for key in ("mean_s", "p50_s", "p95_s", "p99_s")}
        row |= {f"ttft_{name}_s": value for name, value in self.parts_s.items()}
        row |= {f"share_{name}": value for name, value in self.shares.items()}
        return {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}


@dataclass(frozen=True, slots=True)
class Overdue:
    """Rounds that had not ended when the simulation stopped, and can no longer be attained.

    Whether such a round has given its first token is not known, but once its age exceeds the TTFT target and the ITL target for
    each further token together, it has missed at least one of them. `starved`: even STARVED times the TTFT target has passed so.
    """

    session: Ints
    starved: _Flags


def measure(
    outcome: Outcome, sessions: Sequence[TraceSession], ttft_s: float, itl_s: float, window: Window | None = None
) -> Measured:
    """Of the rounds of `sessions`, those simulated, in the window (all by default), against the targets.

    A round that had not ended and could still be attained when the simulation stopped is not counted. A session counts when it
    ended in the window, or has an overdue round.
    """
    window = window or Window()
    records = outcome.records
    counted = (records.arrived_s >= window.start_s) & (records.arrived_s < window.end_s)
    overdue = find_overdue(outcome, sessions, ttft_s, itl_s, window)
    on_time = records.ttft_s <= ttft_s
    steady, steady_p95 = _within(records.itl_s, itl_s), _within(records.itl_p95_s, itl_s)
    hit, hit_p95 = on_time & steady, on_time & steady_p95
    late = len(overdue.session)
    rounds = int(counted.sum()) + late
    starved = int((records.ttft_s[counted] > STARVED * ttft_s).sum()) + int(overdue.starved.sum())
    ended = _ended_sessions(records, sessions, window)
    stuck = np.setdiff1d(overdue.session, np.flatnonzero(ended))
    judged = int(ended.sum()) + len(stuck)
    return Measured(
        rounds=rounds,
        sessions=judged,
        attainment=_share(hit[counted].sum(), rounds),
        attainment_p95_itl=_share(hit_p95[counted].sum(), rounds),
        session_attainment=_share(_all_hit(records.session, hit, ended), judged),
        session_attainment_p95_itl=_share(_all_hit(records.session, hit_p95, ended), judged),
        ttft_share=_share(on_time[counted].sum(), rounds),
        itl_share=_share(steady[counted].sum(), int(counted.sum())),
        very_late=_share(starved, rounds),
        overdue=late,
        ttft=_latency(records.ttft_s[counted]),
        itl=_latency(records.itl_s[counted & ~np.isnan(records.itl_s)]),
        shares={name: _share((records.path[counted] == i).sum(), int(counted.sum())) for i, name in enumerate(PATHS)},
        parts_s=_parts(records, counted),
    )


def attainment_interval(
    outcome: Outcome, sessions: Sequence[TraceSession], ttft_s: float, itl_s: float, window: Window | None = None
) -> Interval:
    """Of the rounds' attainment in one run, by the bootstrap over sessions; overdue rounds are misses of their sessions."""
    window = window or Window()
    records = outcome.records
    counted = (records.arrived_s >= window.start_s) & (records.arrived_s < window.end_s)
    hit = ((records.ttft_s <= ttft_s) & _within(records.itl_s, itl_s))[counted]
    overdue = find_overdue(outcome, sessions, ttft_s, itl_s, window).session
    _, index = np.unique(np.concatenate((records.session[counted], overdue)), return_inverse=True)
    hits = np.bincount(index, weights=np.concatenate((hit, np.zeros(len(overdue))))).astype(np.int64)
    return bootstrap_share(hits, np.bincount(index))


def warm_up_s(outcome: Outcome, sessions: Sequence[TraceSession], lifetimes: float = WARM_UP_LIFETIMES) -> float:
    """So many mean lifetimes of the sessions that ended, from arrival to last token; 0 if none did."""
    whole = np.flatnonzero(_ended_sessions(outcome.records, sessions, Window()))
    if not len(whole):
        return 0.0
    arrived = np.array([sessions[i].arrives_s for i in whole])
    return lifetimes * float((_last_end(outcome.records, len(sessions))[whole] - arrived).mean())


def find_overdue(
    outcome: Outcome, sessions: Sequence[TraceSession], ttft_s: float, itl_s: float, window: Window
) -> Overdue:  # fmt: skip
    """The overdue rounds that arrived in the window."""
    waiting = [(at, i, number) for at, i, number in outcome.unfinished if window.start_s <= at < window.end_s]
    age = np.array([outcome.ended_s - at for at, _, _ in waiting])
    index = np.array([i for _, i, _ in waiting], dtype=np.int64)
    decoding_s = np.array([(sessions[i].rounds[number - 1].output - 1) * itl_s for _, i, number in waiting])
    overdue = age > ttft_s + decoding_s
    return Overdue(index[overdue], (age > STARVED * ttft_s + decoding_s)[overdue])


def _within(itl_s: Floats, target_s: float) -> _Flags:
    """A round of one token has no ITL, and none that is too long."""
    within: _Flags = np.isnan(itl_s) | (itl_s <= target_s)
    return within


def _share(part: int | np.integer, whole: int) -> float:
    return float(part) / whole if whole else math.nan


def _latency(seconds: Floats) -> Latency:
    if not len(seconds):
        return Latency(math.nan, math.nan, math.nan, math.nan)
    p50, p95, p99 = np.quantile(seconds, (0.5, 0.95, 0.99))
    return Latency(float(seconds.mean()), float(p50), float(p95), float(p99))


def _last_end(records: Records, sessions: int) -> Floats:
    last: Floats = np.full(sessions, -math.inf)
    np.maximum.at(last, records.session, records.ended_s)
    return last


def _ended_sessions(records: Records, sessions: Sequence[TraceSession], window: Window) -> _Flags:
    """Which sessions have ended all their rounds, the last of them in the window."""
    rounds = np.array([len(session.rounds) for session in sessions], dtype=np.int64)
    last = _last_end(records, len(sessions))
    whole = np.bincount(records.session, minlength=len(sessions)) >= rounds
    ended: _Flags = whole & (last >= window.start_s) & (last < window.end_s)
    return ended


def _all_hit(session: Ints, hit: _Flags, ended: _Flags) -> int:
    misses = np.bincount(session, weights=~hit, minlength=len(ended))
    return int((ended & (misses == 0)).sum())


def _parts(records: Records, counted: _Flags) -> dict[str, float]:
    if not counted.any():
        return dict.fromkeys(("queue", "transfer", "compute"), math.nan)
    ttft = records.ttft_s[counted]
    queue = np.minimum(records.queued_s[counted], ttft)
    transfer = np.minimum(records.moved_s[counted], ttft - queue)
    means = {"queue": queue, "transfer": transfer, "compute": ttft - queue - transfer}
    return {name: float(values.mean()) for name, values in means.items()}
