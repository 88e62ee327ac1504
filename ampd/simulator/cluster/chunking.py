"""Which prefills a decode worker's coming step computes, and how many tokens of each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ampd.policy.chunks import AnswerLengths, ChunkLimits, DecodeProgress, prefill_budget
from ampd.policy.types import CostModel
from ampd.simulator.cluster.batch import Batch
from ampd.simulator.cluster.job import Job
from ampd.simulator.cluster.times import StepTimes
from ampd.simulator.types import Group, Setup

Pieces = list[tuple[Job, int]]


class Chunking:
    """By `policy.local_prefill`, or as vLLM's scheduler shares `batched_tokens` out: decodes first, then prefills as they came.

    `pauses`: the batch stands still while there is a prefill.
    """

    __slots__ = ("_batched", "_chunk", "_cost", "_itl_s", "_limits", "_slack", "_theta", "_times", "answers", "pauses")

    def __init__(self, setup: Setup, group: Group, cost: CostModel, times: StepTimes) -> None:
        self._cost, self._times, self._theta = cost, times, group.theta
        self._chunk, self._batched, self._itl_s = group.chunk, setup.batched_tokens, setup.itl_s
        self._slack = setup.policy.local_prefill == "slack"
        self.pauses = setup.policy.local_prefill == "exclusive" and not self._batched
        self._limits = ChunkLimits(max_tokens=group.chunk)
        self.answers = AnswerLengths()

    def wants_more(self, prefilling: Sequence[Job]) -> bool:
        """Whether a further prefill would find tokens in the coming step. vLLM admits none that would not."""
        return not self._batched or sum([job.target - job.done for job in prefilling]) < self._batched

    def pieces(self, now: float, batch: Batch, prefilling: Sequence[Job]) -> Pieces:
        """(Job, tokens) of the coming step; at least one.

        Further prefills join a step by ampd/workers/kv/decode_scheduler.py: under `slack` those that fit into it whole, otherwise
        as many as there are tokens for.
        """
        if self.pauses:
            return [(prefilling[0], prefilling[0].target - prefilling[0].done)]
        if self._batched:
            return shared_out(max(1, self._batched - len(batch.jobs)), prefilling)
        if not self._slack:
            return shared_out(self._chunk, prefilling)
        job = prefilling[0]
        budget = self._within_slack(now, batch, job.done) if batch.jobs else self._chunk
        left = job.target - job.done
        pieces = [(job, left if left < budget else budget)]
        if len(prefilling) > 1:
            for other in prefilling[1:]:
                budget -= left
                left = other.target - other.done
                if left > budget:
                    break
                pieces.append((other, left))
        return pieces

    def _within_slack(self, now: float, batch: Batch, done: int) -> int:
        steps, target = batch.steps, self._itl_s
        fresh = len(batch.fresh)
        running = [
            DecodeProgress(target, job.first_at, steps - job.first_step, self.answers.mean - 1 - (steps - job.first_step))
            for job in (list(batch.jobs.values())[: len(batch.jobs) - fresh] if fresh else batch.jobs.values())
        ]
        size, context, times = len(batch.jobs), batch.context, self._times
        return prefill_budget(now, running, lambda n: times.beside(size, context, done, n), self._limits)


def shared_out(tokens: int, prefilling: Iterable[Job]) -> Pieces:
    """A step's tokens for prefills in their order, as far as they go."""
    pieces: Pieces = []
    for job in prefilling:
        chunk = min(tokens, job.target - job.done)
        pieces.append((job, chunk))
        tokens -= chunk
        if not tokens:
            break
    return pieces
