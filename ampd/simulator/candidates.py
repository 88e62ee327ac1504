"""Which deployments are worth a simulation for a kind of policy: those that carry the most by a fluid estimate.

The estimate is a session's seconds on each role, as if work never waited: an order in which to try, not a result. A deployment on
which one round in ten could not be attained even when idle is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ampd.cost_model.arrays import ArrayCostModel
from ampd.simulator.bound import MISSES
from ampd.simulator.deployments import Deployment
from ampd.simulator.load import Load

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
        remote = self._remote_s(given.theta, kind)
        apart = given.replicas / remote
        if kind != "anywhere" or decode.replicas / decoding <= apart:
            return min(apart, decode.replicas / decoding)
        return (decode.replicas + given.replicas * local / remote) / (decoding + local)

    def best(self, deployments: Sequence[Deployment], kind: Kind, count: int) -> list[Deployment]:
        """The `count` best that can carry anything, best first; equals in the order given."""
        rates = {str(d): self.rate(d, kind) for d in deployments}
        ranked = sorted(deployments, key=lambda d: -rates[str(d)])
        return [d for d in ranked if rates[str(d)] > 0][:count]

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

    def _remote_s(self, theta: int, kind: Kind) -> float:
        history, tokens = (0, self.load.prompt) if kind == "recompute" else (self.load.history, self.load.increment)
        return float(self.cost.t_pre(history, tokens, theta).sum()) / self.load.sessions

    def _attainable(self, theta: int, kind: Kind) -> bool:
        history, tokens = (0, self.load.prompt) if kind == "recompute" else (self.load.history, self.load.increment)
        return bool(np.quantile(self.cost.t_pre(history, tokens, theta), 1 - MISSES) <= self.ttft_s)
