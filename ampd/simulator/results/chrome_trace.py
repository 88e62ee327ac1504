"""A run as a Chrome trace, which https://ui.perfetto.dev and chrome://tracing open.

A process a worker; in it lanes for rounds that wait for their turn, KV that is read, prefills and decodes, as many of each as
happen at once, and counters of rounds that wait and that decode. Format: "Trace Event Format" (Google, 2016), complete ("X"),
counter ("C") and metadata ("M") events, times in microseconds.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ampd.simulator.timeline import DECODE, PREFILL, QUEUE, READ
from ampd.simulator.types import Group

Event = dict[str, Any]
_LANES = (PREFILL, READ, QUEUE, DECODE)  # from top to bottom
_COUNTERS = {QUEUE: "queue", DECODE: "batch"}
_SPACING = 100_000  # between the first lanes of two kinds: more than ever happen at once


@dataclass(frozen=True, slots=True, order=True)
class _Span:
    begin_s: float
    end_s: float
    name: str
    args: tuple[tuple[str, int | float], ...]


class ChromeTrace:
    """Collects a simulation's intervals (a `TimelineSink`)."""

    def __init__(self, groups: Sequence[Group]) -> None:
        self._workers = [group for group in groups for _ in range(group.replicas)]
        self._spans: dict[tuple[int, str], list[_Span]] = {}

    def span(self, worker: int, lane: str, name: str, begin_s: float, end_s: float, args: Mapping[str, int | float]) -> None:
        self._spans.setdefault((worker, lane), []).append(_Span(begin_s, end_s, name, tuple(args.items())))

    def write(self, path: Path) -> None:
        """Raises OSError."""
        with path.open("w") as file:
            file.write('{"displayTimeUnit":"ms","traceEvents":[')
            for i, event in enumerate(self.events()):
                file.write(("," if i else "") + "\n" + json.dumps(event, separators=(",", ":")))
            file.write("\n]}\n")

    def events(self) -> Iterator[Event]:
        """Worker by worker, kind by kind, in order of time."""
        for worker, group in enumerate(self._workers):
            yield _named("process_name", worker, 0, f"{group.role} {worker} (TP {group.theta})")
            yield {"name": "process_sort_index", "ph": "M", "pid": worker, "tid": 0, "args": {"sort_index": worker}}
            for kind, lane in enumerate(_LANES):
                spans = sorted(self._spans.get((worker, lane), ()))
                yield from _lanes(spans, lane, worker, (kind + 1) * _SPACING)
                if lane in _COUNTERS:
                    yield from _counter(spans, _COUNTERS[lane], worker)


def _lanes(spans: Sequence[_Span], lane: str, worker: int, first: int) -> Iterator[Event]:
    """Each interval goes to the first lane of its kind that is free by then."""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    lanes = 0
    for span in spans:
        while busy and busy[0][0] <= span.begin_s:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            row = heapq.heappop(free)
        else:
            row, lanes = lanes, lanes + 1
            yield _named("thread_name", worker, first + row, lane if row == 0 else f"{lane} {row + 1}")
            yield {"name": "thread_sort_index", "ph": "M", "pid": worker, "tid": first + row, "args": {"sort_index": first + row}}
        heapq.heappush(busy, (span.end_s, row))
        yield {
            "name": span.name, "cat": lane, "ph": "X", "ts": _us(span.begin_s), "dur": _us(span.end_s - span.begin_s),
            "pid": worker, "tid": first + row, "args": dict(span.args),
        }  # fmt: skip


def _counter(spans: Sequence[_Span], name: str, worker: int) -> Iterator[Event]:
    """How many of the intervals hold each instant, at every change."""
    at = np.array([span.begin_s for span in spans] + [span.end_s for span in spans])
    level = np.repeat([1, -1], len(spans))
    instants, place = np.unique(at, return_inverse=True)
    change = np.bincount(place, weights=level, minlength=len(instants))
    for instant, value in zip(instants.tolist(), np.cumsum(change).tolist(), strict=True):
        yield {"name": name, "ph": "C", "ts": _us(instant), "pid": worker, "tid": 0, "args": {"rounds": round(value)}}


def _named(kind: str, pid: int, tid: int, name: str) -> Event:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 1)
