"""When sessions arrive: Poisson, bursty, as recorded, or scaled; and sessions enough for any rate out of a finite list."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count, islice

import numpy as np

from ampd.errors import ConfigError
from ampd.simulator.types import Floats, TraceSession


def poisson(rate: float, n: int, seed: int) -> Floats:
    """`n` arrival times in seconds at `rate` sessions a second. Raises ConfigError for a rate that is not above 0."""
    return gamma(rate, 1.0, n, seed)


def gamma(rate: float, cv: float, n: int, seed: int) -> Floats:
    """As `poisson`, but the times between arrivals have the coefficient of variation `cv`: 1 is Poisson, 2 to 4 is bursty.

    Equal seeds give the same pattern at every rate, only faster or slower.
    """
    check_positive("rate", rate, "give sessions a second, e.g. 2")
    check_positive("cv", cv, "give the coefficient of variation of the times between arrivals; 1 is Poisson")
    shape = cv**-2
    return np.cumsum(np.random.default_rng(seed).standard_gamma(shape, n)) / (shape * rate)


def from_trace(sessions: Sequence[TraceSession]) -> Floats:
    """The recorded arrivals, the earliest at 0."""
    times = np.array([session.arrives_s for session in sessions])
    return times - times.min() if len(times) else times


def scaled(times: Floats, factor: float) -> Floats:
    """The same arrivals at `factor` times the rate."""
    check_positive("factor", factor, "2 doubles the rate, 0.5 halves it")
    return times / factor


def arriving(sessions: Sequence[TraceSession], times: Floats) -> list[TraceSession]:
    """The sessions, one to each time, in order of arrival. Raises ConfigError if there are fewer times than sessions."""
    if len(times) < len(sessions):
        raise ConfigError(f"times: {len(times)} arrival times for {len(sessions)} sessions; give one for each")
    put = [replace(session, arrives_s=at) for session, at in zip(sessions, times.tolist(), strict=False)]
    return sorted(put, key=lambda session: session.arrives_s)


def endless(sessions: Sequence[TraceSession], seed: int) -> Iterator[TraceSession]:
    """The sessions over and over, each pass in another order, so that all come equally often. Copies are named `name#2`, `name#3`.

    Raises ConfigError for no sessions.
    """
    if not sessions:
        raise ConfigError("sessions: none to repeat; give at least one")
    rng = np.random.default_rng(seed)
    for turn in count(1):
        for i in rng.permutation(len(sessions)).tolist():
            session = sessions[i]
            yield session if turn == 1 else replace(session, name=f"{session.name}#{turn}")


def sustained(
    sessions: Sequence[TraceSession], rate: float, duration_s: float, seed: int, *, cv: float = 1.0
) -> list[TraceSession]:
    """`sessions` repeated at `rate` for `duration_s` seconds, so that rate x duration arrive on average."""
    check_positive("duration_s", duration_s, "give seconds")
    check_positive("rate", rate, "give sessions a second, e.g. 2")
    expected = rate * duration_s
    # Far beyond what varies; drawn in one piece so that a longer duration only adds to a shorter one.
    times = gamma(rate, cv, math.ceil(expected + 10 * cv * math.sqrt(expected) + 10 * (1 + cv * cv)), seed)
    times = times[times < duration_s]
    return arriving(list(islice(endless(sessions, seed), len(times))), times)


def truncated(sessions: Sequence[TraceSession], max_tokens: int) -> list[TraceSession]:
    """Sessions that end before the first round whose prompt and output exceed `max_tokens`, as an agent does whose context is full.

    Sessions without a round that fits are left out.
    """
    cut = []
    for session in sessions:
        fits = next((i for i, r in enumerate(session.rounds) if r.prompt + r.output > max_tokens), len(session.rounds))
        if fits:
            cut.append(session if fits == len(session.rounds) else replace(session, rounds=session.rounds[:fits]))
    return cut


def check_positive(field: str, value: float, fix: str) -> None:
    """Raises ConfigError unless `value` is finite and above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{field}: {value} is not above 0; {fix}")
