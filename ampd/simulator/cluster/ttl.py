"""Continuum's times to live: for how long a session's KV is kept while its tool runs (arXiv 2511.02230).

The paper's rule, as far as it is known to us (tau* = argmax P(tau, f) (T eta + PrefillReload) - tau; eta = -Corr(k, N - k); 100
samples before a tool's own distribution is believed), and these readings of it:

- P(tau, f): share of the tool's times so far that were at most tau; of all tools' before the tool has its 100 samples. The best
  tau is always one of those times, or 0.
- T: mean wait from a round's arrival to its admission. PrefillReload: T_pre(0, all of the session's tokens).
- Corr over all rounds of the programs that have ended: k rounds done, N - k to come. Not below 0; 1, all programs being alike,
  until one has ended.

The released code (github.com/Hanchenli/vllm-continuum, vllm/v1/core/estimate_with_func.py, `set_up_pin`) has neither: it keeps
KV for 2.0 s, or not at all for a tool whose mean time is over 2.0 s. Both start with 2.0 s for a tool that nobody has seen.
"""

from __future__ import annotations

from bisect import insort
from math import sqrt
from typing import Literal

import numpy as np

from ampd.simulator.types import Floats

FIXED_S = 2.0
_SAMPLES = 100  # before a tool's own distribution is used
_MOST = 1000  # quantiles that a distribution is looked at by


class _Times:
    """The times of one tool. The array is made anew whenever there are a tenth more of them."""

    __slots__ = ("array", "mean", "sorted")

    def __init__(self) -> None:
        self.sorted: list[float] = []
        self.array: Floats = np.zeros(0)
        self.mean = 0.0

    def add(self, seconds: float) -> None:
        insort(self.sorted, seconds)
        count = len(self.sorted)
        self.mean += (seconds - self.mean) / count
        if count > 1.1 * len(self.array) and (count <= _MOST or count > 1.1 * _MOST):
            self.array = np.array(self.sorted)

    def best(self, gain_s: float) -> float:
        """The tau that maximises P(tau) gain_s - tau."""
        taus = self.array
        if len(taus) > _MOST:
            taus = taus[np.linspace(0, len(taus) - 1, _MOST).astype(np.int64)]
        values = np.arange(1, len(taus) + 1) * (gain_s / len(taus)) - taus
        best = int(values.argmax())
        return float(taus[best]) if values[best] > 0.0 else 0.0


class TimesToLive:
    """Learns from the rounds of one simulation."""

    def __init__(self, rule: Literal["paper", "released"]) -> None:
        self._released = rule == "released"
        self._all = _Times()
        self._tools: dict[str, _Times] = {}
        self._waits, self._waited_s = 0, 0.0
        self._n = self._k = self._r = self._kk = self._rr = self._kr = 0.0  # sums over rounds: of 1, k, N - k and their products

    def ran(self, tool: str, seconds: float) -> None:
        """A tool has come back."""
        self._all.add(seconds)
        self._tools.setdefault(tool, _Times()).add(seconds)

    def admitted(self, waited_s: float) -> None:
        """A round has been admitted."""
        self._waits += 1
        self._waited_s += waited_s

    def ended(self, rounds: int) -> None:
        """A program has ended."""
        squares = (rounds - 1) * rounds * (2 * rounds - 1) / 6
        ones = rounds * (rounds + 1) / 2
        self._n += rounds
        self._k += ones
        self._r += ones - rounds
        self._kk += squares + rounds * rounds
        self._rr += squares
        self._kr += rounds * ones - squares - rounds * rounds

    @property
    def eta(self) -> float:
        """How well the rounds that are done tell how many are to come."""
        n = self._n
        if not n:
            return 1.0
        spread = (self._kk - self._k * self._k / n) * (self._rr - self._r * self._r / n)
        if spread <= 0.0:
            return 1.0
        return max(0.0, (self._k * self._r / n - self._kr) / sqrt(spread))

    def of(self, tool: str, reload_s: float) -> float:
        """Seconds for which the KV of a session is kept that has called a tool and would take `reload_s` to compute again."""
        own = self._tools.get(tool)
        if self._released:
            return FIXED_S if own is None or own.mean <= FIXED_S else 0.0
        times = own if own is not None and len(own.sorted) >= _SAMPLES else self._all
        if not times.sorted:
            return FIXED_S
        wait_s = self._waited_s / self._waits if self._waits else 0.0
        return times.best(wait_s * self.eta + reload_s)
