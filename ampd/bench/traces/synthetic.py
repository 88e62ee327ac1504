"""Sessions like those of the paper's traces, drawn from the distributions of `shapes`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.random import Generator

from ampd.bench.traces.arrivals import gamma
from ampd.bench.traces.shapes import Length, Shape, Tool, find_shape
from ampd.errors import ConfigError
from ampd.simulator.types import Floats, Ints, TraceRound, TraceSession

Reading = Literal["total", "round"]


def generate(
    name: str, sessions: int, seed: int, *, reading: Reading = "total", bursty_cv: float | None = None
) -> list[TraceSession]:  # fmt: skip
    """Draw sessions like the paper's "toolbench", "gaia", "hotpotqa" or "dureader" (section 7.1, appendix B; docs/traces.md).

    `reading`: the paper's lengths are those of a session, or of each of its rounds. Sessions arrive at one a second on average,
    Poisson or in bursts of coefficient of variation `bursty_cv`; `arrivals` puts them elsewhere. A round's `history` is all
    that came before. The first sessions do not depend on how many are drawn.
    Raises ConfigError for an unknown name or reading, a count below 1, or a `bursty_cv` that is not above 0.
    """
    shape = find_shape(name)
    if reading not in get_args(Reading):
        raise ConfigError(f"reading: '{reading}' is unknown; choose 'total' (a session's lengths) or 'round'")
    if sessions < 1:
        raise ConfigError(f"sessions: {sessions} is not above 0; give how many to draw")
    # A stream for each quantity, so that none shifts another.
    streams = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(6)]
    rounds = _draw_rounds(shape, sessions, streams[0])
    last = np.cumsum(rounds) - 1
    first = last - rounds + 1
    factor = shape.rounds if reading == "round" else 1.0
    new = _draw_lengths(shape.prefill, factor, shape.rounds, first, int(rounds.sum()), streams[1])
    output = _draw_lengths(shape.decode, factor, shape.rounds, last, int(rounds.sum()), streams[2])
    gaps, ran = _draw_gaps(shape.tools, first, len(new), streams[3], streams[4])
    arrivals = gamma(1.0, 1.0 if bursty_cv is None else bursty_cv, sessions, int(streams[5].integers(2**63)))
    made = _make_rounds(new, output, gaps, _names(shape.tools, ran), first, rounds)
    bounds = [*first.tolist(), len(made)]
    cuts = zip(pairwise(bounds), arrivals.tolist(), strict=True)
    return [TraceSession(f"{name}-{i}", tuple(made[a:b]), at) for i, ((a, b), at) in enumerate(cuts)]


def _draw_rounds(shape: Shape, sessions: int, rng: Generator) -> Ints:
    """Of each session."""
    more = shape.rounds - shape.least_rounds
    if math.isinf(shape.dispersion):
        return np.full(sessions, shape.least_rounds, dtype=np.int64)
    drawn: Ints = shape.least_rounds + rng.negative_binomial(
        shape.dispersion, shape.dispersion / (shape.dispersion + more), sessions
    )
    return drawn


def _draw_lengths(length: Length, factor: float, rounds: float, edges: Ints, n: int, rng: Generator) -> Ints:
    """Tokens of `n` rounds, at least 1 each. A session's mean is exact whatever its rounds: they are independent of the lengths."""
    total = length.mean * (factor if length.known else 1.0)
    mean = np.full(n, (1 - length.edge) * total / (rounds - 1))
    sigma = np.full(n, length.sigma)
    mean[edges], sigma[edges] = length.edge * total, length.edge_sigma
    drawn = np.rint(mean * np.exp(sigma * rng.standard_normal(n) - sigma**2 / 2))
    tokens: Ints = np.maximum(1, drawn).astype(np.int64)
    return tokens


def _draw_gaps(tools: Sequence[Tool], first: Ints, n: int, which: Generator, how_long: Generator) -> tuple[Floats, Ints]:
    """Seconds before each round, to the millisecond, and which tool ran; 0 s before a session's first round."""
    ran = np.searchsorted(np.cumsum([tool.share for tool in tools])[:-1], which.random(n), side="right")
    mean, sigma = np.array([tool.mean_s for tool in tools])[ran], np.array([tool.sigma for tool in tools])[ran]
    gaps = np.round(mean * np.exp(sigma * how_long.standard_normal(n) - sigma**2 / 2), 3)
    gaps[first] = 0.0
    return gaps, ran


def _names(tools: Sequence[Tool], ran: Ints) -> list[str]:
    names = [tool.name for tool in tools]
    return [names[i] for i in ran.tolist()]


def _make_rounds(
    new: Ints, output: Ints, gaps: Floats, tools: list[str], first: Ints, rounds: Ints
) -> list[TraceRound]:  # fmt: skip
    before = np.cumsum(new + output) - (new + output)
    history = before - np.repeat(before[first], rounds)
    for i in first.tolist():
        tools[i] = ""
    columns = ((history + new).tolist(), history.tolist(), output.tolist(), gaps.tolist(), tools)
    return list(map(TraceRound, *columns))
