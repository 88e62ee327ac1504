"""Which deployments are worth a simulation for a kind of policy: those that carry the most by a fluid estimate.

The estimate is a session's seconds on each role, where prefill workers are used no more than lets nine of ten rounds wait for what
their TTFT target leaves: an order in which to try, not a result. A deployment on which one round in ten could not be attained even
when idle is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ampd.cost_model.arrays import ArrayCostModel
from ampd.simulator.experiments.bound import MISSES
from ampd.simulator.experiments.deployments import Deployment, Side
from ampd.simulator.experiments.load import Load
from ampd.simulator.types import Floats

# Where a policy may prefill: anywhere; only on prefill workers, which read the history or compute it again; on decode workers.
Kind = Literal["anywhere", "remote", "recompute", "colocated"]

_CHUNK = 512


@dataclass(frozen=True, slots=True)
class Fluid:
    """The estimator for a load, its targets and a model."""

    load: Load
    cost: ArrayCostModel
    capacity: dict[int, int]
    ttft_s: float
    itl_s: float
    max_running: int = 256

    def rate(self, deployment: Deployment, kind: Kind) -> float:
        """Sessions a second; 0 for a deployment that the kind cannot use, or on which too many rounds always miss."""
        given, decode = deployment.prefill, deployment.decode
        if (given is None) != (kind == "colocated") and kind != "anywhere":
            return 0.0
        batch, step_s = self._batch(decode.theta)
        if batch == 0:
            return 0.0
        decoding = float(self.load.steps.sum()) * step_s / batch / self.load.sessions
        local = self._local_s(decode.theta, batch, step_s)
        if given is None:
            return decode.replicas / (decoding + local) if self._attainable(decode.theta, kind) else 0.0
        thetas = (given.theta, decode.theta) if kind == "anywhere" else (given.theta,)
        if not any(self._attainable(theta, kind) for theta in thetas):
            return 0.0
        remote = float(self._prefills_s(given.theta, kind).sum()) / self.load.sessions
        apart = given.replicas / remote * self._usable(given, decode, step_s, kind)
        if kind != "anywhere" or decode.replicas / decoding <= apart:
            return min(apart, decode.replicas / decoding)
        return (decode.replicas + apart * local) / (decoding + local)

    def best(self, deployments: Sequence[Deployment], kind: Kind, count: int) -> list[Deployment]:
        """The `count` most promising of those that can carry anything; equals in the order given.

        For a policy that may prefill anywhere most deployments carry the same on paper. So half of its candidates are those that
        are good with all prefills remote too (by the product of both estimates), a quarter have no prefill workers, and a quarter
        are the best by its own estimate.
        """
        if kind != "anywhere":
            return self._ranked(deployments, lambda d: self.rate(d, kind))[:count]
        both = self._ranked(deployments, lambda d: self.rate(d, "anywhere") * self.rate(d, "remote"))
        without = self._ranked(deployments, lambda d: self.rate(d, "colocated"))
        own = self._ranked(deployments, lambda d: self.rate(d, "anywhere"))
        turns = (both, without, both, own)
        found: list[Deployment] = []
        for turn in range(4 * len(deployments)):
            found += [d for d in turns[turn % 4] if d not in found][:1]
        return found[:count]

    def _ranked(self, deployments: Sequence[Deployment], rate: Callable[[Deployment], float]) -> list[Deployment]:
        rates = {d: rate(d) for d in deployments}
        return [d for d in sorted(deployments, key=lambda d: -rates[d]) if rates[d] > 0]

    def _usable(self, given: Side, decode: Side, step_s: float, kind: Kind) -> float:
        """The share of their time that prefill workers may be busy.

        A round's TTFT is its wait, its prefill, the transfers there and back, half a step until the decode batch takes it, a step.

        Of M/D/n queues, the tail of the wait is about the chance to wait, x^(sqrt(2 (n + 1)) - 1), times exp(-2 n (1 - x) wait /
        service) (Sakasegawa 1977; the exponent is exact in heavy traffic).
        """
        seconds, replicas = self._prefills_s(given.theta, kind), given.replicas
        back = self.load.prompt if kind == "recompute" else self.load.increment
        moved = self.cost.t_kv(back, given.theta, decode.theta, "increment")
        if kind != "recompute":
            moved = moved + self.cost.t_kv(self.load.history, decode.theta, given.theta, "history")
        service = float(seconds.mean())
        slack = self.ttft_s - 1.5 * step_s - float(np.quantile(seconds + moved, 1 - MISSES))
        loads = np.linspace(0.0, 1.0, 101)
        tail = loads ** (np.sqrt(2 * (replicas + 1)) - 1) * np.exp(-2 * replicas * (1 - loads) * slack / service)
        # Never nothing: with a small decode batch, steps are shorter.
        return max(0.01, float(loads[tail <= MISSES].max(initial=0.0)) if slack > 0 else 0.0)

    def _batch(self, theta: int) -> tuple[int, float]:
        """The largest batch whose step keeps the ITL target and whose KV fits, and its step's seconds; (0, 0) if there is none."""
        context = self.load.mean_context
        sizes = np.arange(1, self.max_running + 1)
        seconds = self.cost.t_dec(sizes, (sizes * context).astype(np.int64), theta)
        fits = (seconds <= self.itl_s) & (sizes * context <= self.capacity[theta])
        return (int(sizes[fits][-1]), float(seconds[fits][-1])) if fits.any() else (0, 0.0)

    def _local_s(self, theta: int, batch: int, step_s: float) -> float:
        """What a session's prefills add to the steps of such a batch, in chunks."""
        context = int(batch * self.load.mean_context)
        token_s = (float(self.cost.t_mixed(batch, context, _CHUNK, theta)) - step_s) / _CHUNK
        attention = self.cost.t_pre(self.load.history, _CHUNK, theta) - self.cost.t_pre(0, _CHUNK, theta)
        return float((self.load.increment * (token_s + attention / _CHUNK)).sum()) / self.load.sessions

    def _prefills_s(self, theta: int, kind: Kind) -> Floats:
        """Of each round, alone on a worker."""
        if kind == "recompute":
            return self.cost.t_pre(0, self.load.prompt, theta)
        return self.cost.t_pre(self.load.history, self.load.increment, theta)

    def _attainable(self, theta: int, kind: Kind) -> bool:
        return bool(np.quantile(self._prefills_s(theta, kind), 1 - MISSES) <= self.ttft_s)
