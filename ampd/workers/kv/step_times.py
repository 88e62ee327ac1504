"""How long an engine step takes: a cost model to start from, corrected by every step that is measured."""

from __future__ import annotations

from dataclasses import dataclass

from ampd.policy.types import CostModel


@dataclass(frozen=True, slots=True)
class StepWork:
    """One step: `batch` decoding sequences that attend to `context` tokens of KV in all, and `chunk` tokens of prefill that
    follow `history` tokens of their prompt.
    """

    batch: int = 0
    context: int = 0
    chunk: int = 0
    history: int = 0


class StepTimes:
    """Predicts steps. The decode part and the prefill part are the cost model's, each times a factor learned as a moving average.

    The prefill part of a mixed step is what its tokens add (`T_pre` less its constant), attention over `history` included: the
    constant is paid once a step, by the decode part. `measured` says that the cost model is of this engine; then the first
    observations weigh less.
    """

    WEIGHT = 0.1  # of one observation, once there are enough
    OUTLIER = 4.0  # an observation farther off than this factor counts as this far: a stalled machine is no slow engine
    TRUST = 8  # observations that a measured cost model is worth
    LEAST_CHUNK = 8  # smaller chunks are lost in the noise of the decode part

    def __init__(self, cost: CostModel, theta: int, measured: bool) -> None:
        self._cost, self._theta = cost, theta
        start = self.TRUST if measured else 0
        self._decode = _Factor(start)
        self._prefill = _Factor(start)

    @property
    def calibrated(self) -> bool:
        """Whether the prefill part is known at all, from a profile or from a step."""
        return self._prefill.seen > 0

    def predict(self, work: StepWork) -> float:
        """Seconds; 0 for nothing to compute."""
        if work.batch == 0:
            if work.chunk == 0:
                return 0.0
            return self._prefill.value * self._cost.t_pre(work.history, work.chunk, self._theta)
        return self._decode_s(work) + self._prefill.value * self._added_s(work)

    def observe(self, work: StepWork, seconds: float) -> None:
        """A step has taken so long."""
        if work.batch == 0:
            if work.chunk >= self.LEAST_CHUNK:
                self._prefill.learn(seconds / self._cost.t_pre(work.history, work.chunk, self._theta))
        elif work.chunk == 0:
            self._decode.learn(seconds / self._cost.t_dec(work.batch, work.context, self._theta))
        elif work.chunk >= self.LEAST_CHUNK and (added := self._added_s(work)) > 0:
            self._prefill.learn(max(0.0, seconds - self._decode_s(work)) / added)

    def _decode_s(self, work: StepWork) -> float:
        return self._decode.value * self._cost.t_dec(work.batch, work.context, self._theta)

    def _added_s(self, work: StepWork) -> float:
        t_pre = self._cost.t_pre
        return t_pre(work.history, work.chunk + 1, self._theta) - t_pre(work.history, 1, self._theta)


class _Factor:
    """A moving average of measured over modelled; plain average at first."""

    __slots__ = ("seen", "value")

    def __init__(self, seen: int) -> None:
        self.seen, self.value = seen, 1.0

    def learn(self, ratio: float) -> None:
        if self.seen >= StepTimes.TRUST:
            ratio = min(max(ratio, self.value / StepTimes.OUTLIER), self.value * StepTimes.OUTLIER)
        self.seen += 1
        self.value += (ratio - self.value) * max(StepTimes.WEIGHT, 1 / self.seen)
