"""The ITL slack of vLLM's running batch, and the prefill budget that it leaves to the next step (ampd.policy.chunks).

Reads attributes of vLLM's requests, imports none of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ampd.policy.chunks import AnswerLengths, ChunkLimits, DecodeProgress, prefill_budget
from ampd.workers.kv.params import ITL_TARGET
from ampd.workers.kv.step_times import StepTimes, StepWork

# Beside a running batch, until a step has shown what prefill costs here.
_PROBE_TOKENS = 64


@dataclass(slots=True)
class _Step:
    """A step under way: what it computes, since when it has been planned, and for how long it is expected to run."""

    output: Any
    work: StepWork
    planned_at: float
    expected_s: float


@dataclass(frozen=True, slots=True)
class _Decode:
    """A request whose first token has left, at `first_at`; it then had `tokens` output tokens."""

    itl_target_s: float
    first_at: float
    tokens: int


class ChunkBound:
    """Follows every step from its plan to its end. `clock` gives monotonic seconds.

    With asynchronous scheduling a step is planned while earlier ones still run: their predicted end is the new step's start, and
    the tokens they will give count as given.
    """

    def __init__(self, times: StepTimes, limits: ChunkLimits, itl_target_s: float, clock: Callable[[], float]) -> None:
        self._times, self._limits, self._itl_target_s, self._clock = times, limits, itl_target_s, clock
        self._steps: deque[_Step] = deque()
        self._decodes: dict[str, _Decode] = {}
        self._answers = AnswerLengths()
        self._ended_at = float("-inf")

    def __len__(self) -> int:
        """Requests whose first token has left."""
        return len(self._decodes)

    def budget(self, decoding: Sequence[Any], history: int) -> int:
        """Tokens of prefill for the coming step, the first of which follows `history` tokens of its prompt."""
        starts_at = self._starts_at()
        base = StepWork(len(decoding), context_of(decoding), 0, history)
        limits = self._limits
        if not self._times.calibrated:
            limits = replace(limits, max_tokens=min(limits.max_tokens, _PROBE_TOKENS)) if decoding else limits
        progress = [self._progress(request, starts_at) for request in decoding]
        return prefill_budget(starts_at, progress, lambda n: self._times.predict(replace(base, chunk=n)), limits)

    def planned(self, output: Any, decoding: Sequence[Any], prefills: Sequence[tuple[int, int]]) -> None:
        """A step has been planned. `prefills`: (tokens before, tokens to compute) of each prefill in it."""
        chunk = sum(tokens for _, tokens in prefills)
        history = round(sum(before * tokens for before, tokens in prefills) / chunk) if chunk else 0
        work = StepWork(len(decoding), context_of(decoding), chunk, history)
        self._steps.append(_Step(output, work, self._clock(), self._times.predict(work)))

    def ended(self, output: Any, requests: Iterable[Any]) -> None:
        """The oldest step has ended; `requests` are those in it that still exist. Learns from it, and notes first tokens."""
        now = self._clock()
        while self._steps:
            step = self._steps.popleft()
            if step.output is output:
                # A batch waits from token to token: what the engine does between two steps is part of it.
                began = self._ended_at if step.work.batch else max(step.planned_at, self._ended_at)
                if began > float("-inf"):
                    self._times.observe(step.work, now - began)
                break
        self._ended_at = now
        for request in requests:
            if request.num_output_tokens and request.request_id not in self._decodes:
                self._decodes[request.request_id] = _Decode(self._target(request), now, request.num_output_tokens)

    def forget(self, request: Any) -> None:
        """The request is over."""
        if self._decodes.pop(request.request_id, None) is not None and request.max_tokens > 1:
            self._answers.ended(request.num_output_tokens)

    def _starts_at(self) -> float:
        at = self._clock()
        free_at = self._ended_at
        for step in self._steps:
            free_at = max(free_at, step.planned_at) + step.expected_s
        return max(at, free_at)

    def _progress(self, request: Any, starts_at: float) -> DecodeProgress:
        known = self._decodes.get(request.request_id)
        tokens = request.num_output_tokens + request.num_output_placeholders
        left = self._answers.left(tokens, request.max_tokens)
        if known is None:  # its first token is still being computed
            return DecodeProgress(self._target(request), starts_at, max(0, tokens - 1), left)
        return DecodeProgress(known.itl_target_s, known.first_at, tokens - known.tokens, left)

    def _target(self, request: Any) -> float:
        target = (request.kv_transfer_params or {}).get(ITL_TARGET)
        return self._itl_target_s if target is None else float(target)


def context_of(running: Iterable[Any]) -> int:
    """Tokens of KV that requests attend to."""
    return sum(request.num_computed_tokens for request in running)
