"""Predicted against measured times of every task of one worker: what its calibration learns from.

What the profile says is of an engine that does one thing. Tasks share an engine, so only what can be told apart is judged:

    T_pre    a prefill without a batch beside it, from the engine's first step of it to its result
    T_mixed  a prefill beside a batch, in all its steps; these are counted by the tokens that leave meanwhile
             (neither where an engine `packs`, that is computes several prefills in a step, unless there was one only)
    T_dec    the gaps of a round in which no prefill was in the engine
    T_kv     a read without another read or prefill in the engine, nor a batch whose steps are long beside it: an engine notices the
             end of a read only between two steps; what others read from the same holder meanwhile is not seen
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ampd.cost_model.calibration import Calibration, CostFunction
from ampd.policy.types import CostModel, Direction
from ampd.workers.engines.base import EngineLoad, KvFacts

# Of a prefill beside a batch. The step under way when it arrives may or may not count, so of few steps too much is uncertain.
_LEAST_STEPS = 8
_SAMPLE_EVERY = 16  # tokens of a round between two looks at the batch
_LONG_STEP = 0.25  # as a share of a read
_READS = 64  # remembered, to find those that overlap

Told = Callable[[CostFunction, float, float], None]


@dataclass(frozen=True, slots=True)
class Predictor:
    """What the graph's profile says of a worker. `peer_theta` is the other side's in transfers, None when there are several."""

    cost: CostModel
    theta: int
    peer_theta: int | None


class Judge:
    """Follows what a worker's engine is at, and judges each job when it ends.

    `told` hears of every judgement (function, predicted and measured seconds), for metrics. Without a calibration all factors are
    1, without a predictor nothing is judged.
    """

    def __init__(
        self,
        predictor: Predictor | None = None,
        load: Callable[[], EngineLoad] = EngineLoad,
        calibration: Calibration | None = None,
        told: Told | None = None,
        clock: Callable[[], float] = time.time,
        packs: bool = False,
    ) -> None:
        self.packs = packs
        self.predictor, self.load, self._calibration, self._told = predictor, load, calibration, told
        self.clock = clock  # unix seconds, as KvFacts has them
        self.decoding = 0  # rounds between their first token and their last
        self.prefilling = 0  # prefills in the engine
        self.prefills = 0  # that have ever been
        self.steps = 0.0  # decode steps made, as the tokens that left tell
        self.computed_at = 0.0  # end of the last prefill
        self.reads: deque[tuple[float, float]] = deque(maxlen=_READS)

    def factor(self, fn: CostFunction) -> float:
        """Measured over predicted, as learnt so far."""
        return 1.0 if self._calibration is None else round(self._calibration.factor(fn), 3)

    def watch(self, direction: Direction, tokens: int, computes: bool) -> JobWatch:
        """A job that is to go to the engine. See JobWatch."""
        return JobWatch(self, direction, tokens, computes)

    @property
    def undisturbed(self) -> int | None:
        """Equal at two times between which no prefill was in the engine; None while one is."""
        return None if self.prefilling else self.prefills

    def judged(self, fn: CostFunction, predicted_s: float, measured_s: float) -> None:
        """A task, or all of it that was measured."""
        if predicted_s <= 0 or measured_s <= 0:
            return
        if self._told is not None:
            self._told(fn, predicted_s, measured_s)
        if self._calibration is not None:
            self._calibration.add(fn, predicted_s, measured_s, self.clock())


class JobWatch:
    """One job of a prompt of `tokens` tokens, which reads KV `direction`, and `computes` what is left of the prompt as a prefill.

    A prefill for others `begins` and `ends`; a round meanwhile has its tokens. Either is `over` when its facts are known.
    """

    def __init__(self, judge: Judge, direction: Direction, tokens: int, computes: bool) -> None:
        self._judge, self._direction, self._tokens, self._computes = judge, direction, tokens, computes
        self._phase: Literal["before", "prefilling", "decoding", "reading", "after"] = "before"
        self._began_at = self._free_at = self._computed_at = 0.0
        self._steps, self._batch, self._context, self._alone = 0.0, 0, 0, False
        self._only, self._prefills = False, 0
        self._clean_s, self._clean = 0.0, 0
        self._steps_s, self._looks, self._since = 0.0, 0, 0  # T_dec of the batches looked at
        self._mark: int | None = None

    def begins(self) -> None:
        """The job goes to the engine."""
        judge = self._judge
        self._phase = "prefilling" if self._computes else "reading"
        self._began_at, self._context = judge.clock(), judge.load().context
        self._steps, self._batch, self._alone = judge.steps, judge.decoding, judge.decoding == 0
        self._only = judge.prefilling == 0
        if self._computes:
            judge.prefilling += 1
            judge.prefills += 1
        self._prefills = judge.prefills

    def first_token(self) -> None:
        """The round's first tokens have left."""
        judge = self._judge
        self._prompt_done()
        self._phase = "decoding"
        judge.decoding += 1
        self._mark = judge.undisturbed
        self._look()

    def ends(self) -> None:
        """The job has left the engine, however it ended; a prefill's result is there if it is `over` then. Idempotent."""
        self._prompt_done()
        if self._phase == "decoding":
            self._judge.decoding -= 1
        self._phase = "after"

    def _prompt_done(self) -> None:
        """The engine has the prompt's KV, read or computed, or has given it up."""
        judge = self._judge
        if self._phase in ("prefilling", "reading"):
            self._only = self._only and judge.prefills == self._prefills
        if self._phase == "prefilling":
            judge.prefilling -= 1
            self._computed_at, self._free_at = judge.clock(), judge.computed_at
            judge.computed_at = self._computed_at
            self._steps = judge.steps - self._steps
            self._alone = self._alone and judge.decoding == 0 and self._steps == 0

    def tokens_left(self, seconds: float, tokens: int) -> None:
        """More tokens have left, so many seconds after those before."""
        judge = self._judge
        judge.steps += tokens / max(1, judge.decoding)
        mark = judge.undisturbed
        if mark is not None and mark == self._mark:
            self._clean_s += seconds
            self._clean += tokens
        self._mark = mark
        self._since += tokens
        if self._since >= _SAMPLE_EVERY:
            self._look()

    def _look(self) -> None:
        judge, self._since = self._judge, 0
        if judge.predictor is not None:
            self._steps_s += judge.predictor.cost.t_dec(judge.decoding, judge.load().context, judge.predictor.theta)
            self._looks += 1

    def over(self, facts: KvFacts) -> None:
        """The job has come to its proper end; `facts` say what became of its KV."""
        self.ends()
        predictor = self._judge.predictor
        if predictor is None:
            return
        self._judge_read(predictor, facts)
        known = facts.cached_tokens + facts.read_tokens
        if self._computed_at and known < self._tokens:
            began = facts.compute_started_at or self._began_at + facts.read_s
            self._judge_prefill(predictor, known, self._computed_at - max(began, self._free_at))
        if self._clean and self._looks:
            self._judge.judged("t_dec", self._clean * self._steps_s / self._looks, self._clean_s)

    def _judge_read(self, predictor: Predictor, facts: KvFacts) -> None:
        began, ended = facts.read_started_at, facts.read_ended_at
        if not facts.read_tokens or began is None or ended is None:
            return
        reads = self._judge.reads
        overlapped = any(began < end and start < ended for start, end in reads)
        reads.append((began, ended))
        if predictor.peer_theta is None or overlapped or not self._only:
            return
        predicted_s = predictor.cost.t_kv(facts.read_tokens, predictor.peer_theta, predictor.theta, self._direction)
        step_s = predictor.cost.t_dec(self._batch, self._context, predictor.theta) if self._batch else 0.0
        if step_s <= _LONG_STEP * predicted_s:
            self._judge.judged("t_kv", predicted_s, facts.read_s)

    def _judge_prefill(self, predictor: Predictor, known: int, measured_s: float) -> None:
        cost, theta, new = predictor.cost, predictor.theta, self._tokens - known
        if self._judge.packs and not self._only:
            return
        if self._alone:
            self._judge.judged("t_pre", cost.t_pre(known, new, theta), measured_s)
            return
        steps = round(self._steps)
        if self._batch == 0 or steps < _LEAST_STEPS:
            return
        chunk = -(-new // steps)
        # A step is T_mixed, and what attention to all before its chunk adds: on average to half of the new tokens.
        attention_s = cost.t_pre(known + new // 2, chunk, theta) - cost.t_pre(0, chunk, theta)
        step_s = cost.t_mixed(self._batch, self._context, chunk, theta) + max(0.0, attention_s)
        self._judge.judged("t_mixed", steps * step_s, measured_s)
