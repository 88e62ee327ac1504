"""The sessions of one run: a generated or a recorded trace, put at a rate for so long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path

import numpy as np

from ampd.bench.traces import SHAPES, Reading, arriving, endless, from_trace, gamma, generate, load_trace
from ampd.errors import ConfigError
from ampd.simulator.types import Floats, TraceSession

DURATION_S = 600.0


@dataclass(frozen=True, slots=True)
class Workload:
    """`trace`: a generator's name, or a file (of Weka's, a folder). `rate` in sessions a second; None: at a file's own times.

    `duration_s` of arrivals, or sessions of `rounds` in all; with neither, a file once, or `DURATION_S`. `cv`: of the times between
    arrivals; 1 is Poisson.
    """

    trace: str
    rate: float | None = None
    duration_s: float | None = None
    rounds: int | None = None
    reading: Reading = "total"
    cv: float = 1.0

    def check(self) -> None:
        """Raises ConfigError."""
        for name, value, what in (("--rate", self.rate, "sessions a second, e.g. 2"), ("--duration", self.duration_s, "seconds"),
                                  ("--rounds", self.rounds, "a number of rounds"),
                                  ("--cv", self.cv, "1 for Poisson, 2 to 4 for bursts")):  # fmt: skip
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} {value:g}: must be above 0; give {what}")
        if self.duration_s is not None and self.rounds is not None:
            raise ConfigError("--duration and --rounds are both given: each says how long the run is; give one")
        if self.trace not in SHAPES and not Path(self.trace).exists():
            raise ConfigError(f"--trace {self.trace!r}: no such file, and no generator; generators are {', '.join(SHAPES)}")
        if self.trace in SHAPES and self.rate is None:
            raise ConfigError(f"--rate is not given: trace {self.trace!r} has no arrival times of its own; give sessions a second")

    @property
    def name(self) -> str:
        """Of the trace, without its folder."""
        return self.trace if self.trace in SHAPES else Path(self.trace).stem

    def sessions(self, seed: int) -> tuple[list[TraceSession], float]:
        """The sessions in order of arrival, and when arrivals end. Raises ConfigError, also for what is wrong in a file."""
        self.check()
        sessions, end_s = self._generated(seed) if self.trace in SHAPES else self._recorded(seed)
        if not sessions:
            raise ConfigError(f"--duration {end_s:g}: no session arrives within it; give a longer one")
        return sessions, end_s

    def _recorded(self, seed: int) -> tuple[list[TraceSession], float]:
        recorded = load_trace(self.trace)
        if self.rate is None:
            if len(recorded) > 1 and not from_trace(recorded).any():
                raise ConfigError(
                    f"--rate is not given: the sessions of {self.trace} have no arrival times; give sessions a second"
                )
            return self._as_recorded(arriving(recorded, from_trace(recorded)))
        if self.rounds is None:
            times = self._times(seed, self.duration_s or DURATION_S)
            return arriving(list(islice(endless(recorded, seed), len(times))), times), self.duration_s or DURATION_S
        mean = sum(len(s.rounds) for s in recorded) / len(recorded)
        # Sessions of equal lengths can come in a row, but never fewer rounds in a pass than the file has.
        most = math.ceil(self.rounds / mean) + len(recorded)
        return self._first(list(islice(endless(recorded, seed), most)), seed)

    def _generated(self, seed: int) -> tuple[list[TraceSession], float]:
        if self.rounds is None:
            duration_s = self.duration_s or DURATION_S
            times = self._times(seed, duration_s)
            drawn = generate(self.trace, len(times), seed, reading=self.reading) if len(times) else []
            return arriving(drawn, times), duration_s
        shape = SHAPES[self.trace]
        most = math.ceil(1.5 * self.rounds / shape.rounds) + 50
        return self._first(generate(self.trace, most, seed, reading=self.reading), seed)

    def _times(self, seed: int, duration_s: float) -> Floats:
        """Arrivals before `duration_s`: a longer duration only adds to a shorter one."""
        assert self.rate is not None
        expected = self.rate * duration_s
        most = math.ceil(expected + 10 * self.cv * math.sqrt(expected) + 10 * (1 + self.cv**2))
        times = gamma(self.rate, self.cv, most, seed)
        return times[times < duration_s]

    def _first(self, sessions: Sequence[TraceSession], seed: int) -> tuple[list[TraceSession], float]:
        """As many as have `rounds` rounds, at the rate."""
        assert self.rate is not None
        assert self.rounds is not None
        kept = sessions[: _enough(sessions, self.rounds)]
        times = gamma(self.rate, self.cv, len(kept), seed)
        return arriving(kept, times), float(np.nextafter(times[-1], math.inf))

    def _as_recorded(self, sessions: Sequence[TraceSession]) -> tuple[list[TraceSession], float]:
        kept = sessions if self.rounds is None else sessions[: _enough(sessions, self.rounds)]
        kept = [s for s in kept if s.arrives_s < (self.duration_s or math.inf)]
        return kept, self.duration_s or math.inf


def _enough(sessions: Sequence[TraceSession], rounds: int) -> int:
    """How many of the first sessions have so many rounds."""
    return next((i for i, sum_ in enumerate(accumulate(len(s.rounds) for s in sessions), 1) if sum_ >= rounds), len(sessions))
