"""A load's rounds as arrays, and what a session of it takes on average."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ampd.errors import ConfigError
from ampd.simulator.types import Floats, Ints, TraceSession


@dataclass(frozen=True, slots=True)
class Load:
    """All rounds of `sessions` sessions, one row each. `context`: mean tokens of KV while the answer is decoded."""

    sessions: int
    prompt: Ints
    history: Ints
    output: Ints
    gap_s: Floats
    context: Floats

    @property
    def rounds(self) -> float:
        """Of a session, on average."""
        return len(self.prompt) / self.sessions

    @property
    def increment(self) -> Ints:
        """Tokens that a round must prefill whatever is kept; the last is always computed, to sample from."""
        increment: Ints = np.maximum(self.prompt - self.history, 1)
        return increment

    @property
    def steps(self) -> Ints:
        """Decode steps that a round cannot do without: a token each, but the first, which a prefill may sample."""
        return self.output - 1

    @property
    def mean_context(self) -> float:
        """Of a token that is decoded."""
        return float(np.average(self.context, weights=self.output))

    @property
    def longest(self) -> int:
        return int((self.prompt + self.output).max())

    def lifetime_s(self, ttft_s: float, itl_s: float) -> float:
        """Of a session whose rounds take just their targets, on average."""
        return float((self.gap_s + ttft_s + self.steps * itl_s).sum()) / self.sessions


def load_of(sessions: Sequence[TraceSession]) -> Load:
    """Raises ConfigError for no sessions."""
    rounds = [r for session in sessions for r in session.rounds]
    if not rounds:
        raise ConfigError("sessions: none; a load has at least one")
    rows = np.array([(r.prompt, r.history, r.output) for r in rounds], dtype=np.int64)
    prompt, history, output = rows.T.copy()
    gaps = np.array([r.gap_s for r in rounds])
    return Load(len(sessions), prompt, history, output, gaps, prompt + output / 2)
