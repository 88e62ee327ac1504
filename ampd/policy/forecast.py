"""What one round would meet on each candidate: when its first token leaves, and what that does to a running batch.

    remote P     queued_s + link + T_kv(history that P lacks) + T_pre(what P computes) + T_kv(increment back)
                 + half a step and the first step on D
    local D      (queued_s + T_pre) x stretch; with slack: half a step + one that computes the increment too, see `_within_slack`
    deflected W  as remote, with queued_s + T_pre stretched by W's own batch

- P and W compute the prompt less max(what their own cache holds, the history on D), and read from D only what they lack of it.
- link: the seconds of transfers that the busier of both ends still owes.
- The first token of a round prefilled elsewhere leaves after one step of D's batch; the last chunk of a local prefill samples it.
  Whatever joins a batch waits for the end of the step under way, half a step on average.
- A prefill beside a running batch, whose step takes T_dec, gets by `policy.local_prefill`
    slack      the part of each step that the ITL target leaves: stretch = target / (target - T_dec), steps as long as the target
    chunked    steps of T_mixed, of which T_mixed - T_dec is prefill
    exclusive  all of the time: the batch stands still for T_pre
  The last two delay the batch by the prefill's own time, which is charged to it as `stall_s`; slack by what its steps become
  longer, `_DELAY` times over: all of the batch is late by that, and so is what comes after the prefill.
- Every T is multiplied by the factor that the worker has measured for it (see WorkerView); a read's by the reader's.

Nothing here reads a window.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from ampd.policy.chunks import ChunkLimits
from ampd.policy.placing import Case
from ampd.policy.settings import LocalPrefill
from ampd.policy.types import LEAST_FACTOR, WorkerView

# What a batch without slack still gives a prefill, as a share of its own step, and the longest step in ITL targets (see `chunks`).
_FLOOR, _BURST = ChunkLimits(max_tokens=1).floor_share, ChunkLimits(max_tokens=1).burst
_WAIT = 0.5  # of a step, for the end of the one under way
# Tried in the simulator on one load: at 1 a busy decode worker takes on too much, 4 does about as well (docs/policies.md).
_DELAY = 2.0
# T_dec by two points of its line, and by itself, may differ in the last digits.
_JUST_BELOW = 1 - 1e-9


class Terms(NamedTuple):
    """Seconds of a round on a worker other than D, by who multiplies them: `rest` has D's factors, the others want the worker's.

    The last two are the least that `read` and `prefill` are on any worker of this theta, whatever it holds.
    """

    rest: float
    read: float
    prefill: float
    least_read: float
    least_prefill: float


class Outlook(NamedTuple):
    """What the round would meet on its decode worker. Candidates are compared by `score`: the finish, plus the batch's delay."""

    finish_s: float
    itl_s: float
    score: float


class Forecast:
    """The candidates of one round. Terms that depend on theta alone are computed once. `itl_limit_s` bounds a step of a batch."""

    __slots__ = ("_chunk", "_mode", "_step_s", "_steps", "_t_pre", "_terms", "case", "itl_limit_s", "longest_step_s", "stretches")

    def __init__(self, case: Case, mode: LocalPrefill, chunk: int, itl_limit_s: float) -> None:
        decode = case.decode
        self.case, self._mode, self._chunk, self.itl_limit_s = case, mode, chunk, itl_limit_s
        self.stretches = mode == "slack"
        self.longest_step_s = itl_limit_s / (1 + _FLOOR) if self.stretches else itl_limit_s  # of a batch with slack
        self._step_s = decode.t_dec_factor * case.cost.t_dec(decode.running + 1, decode.context + case.tokens, decode.theta)
        self._terms: dict[int, Terms] = {}
        self._steps: dict[int, tuple[float, float]] = {}
        self._t_pre: dict[int, float] = {}

    def local(self) -> Outlook:
        """The round on its bound decode worker."""
        decode = self.case.decode
        prefill = decode.t_pre_factor * self.prefill_s(decode.theta)
        if self.stretches and decode.running and prefill > 0:
            return self._within_slack(decode, prefill)
        stretch, itl_s, stall_s = self.beside(decode, prefill)
        finish = (decode.queued_s + prefill) * stretch
        return Outlook(finish, itl_s, finish + stall_s)

    def _within_slack(self, decode: WorkerView, prefill_s: float) -> Outlook:
        """Beside the batch, in as few steps as the longest that it may be given allow.

        A step that has to read the weights anyway takes less more for a prefill than T_pre; so do those that wait before it.
        """
        cost, tokens, theta = self.case.cost, self.case.round.l_incr, decode.theta
        step = decode.t_dec_factor * cost.t_dec(decode.running, decode.context, theta)
        mixed = self._mixed_s(decode, step, tokens)
        attention = prefill_s - decode.t_pre_factor * cost.t_pre(0, tokens, theta)
        more = mixed - step + max(0.0, attention)
        length = max(self.itl_limit_s, step * (1 + _FLOOR))
        longest = _BURST * self.itl_limit_s
        work = more * (1 + decode.queued_s / prefill_s)
        finish = step + work if step + work <= longest else max(longest, work * length / (length - step))
        finish += _WAIT * step
        return Outlook(finish, length, finish + _DELAY * more)

    def deflected(self, worker: WorkerView) -> float:
        """The score on a decode worker other than D; infinite on one without slack."""
        case, held, running, link, link_d = self.case, self.case.round.held, worker.running, worker.link_s, self.case.decode.link_s
        theta, queued = worker.theta, worker.queued_s
        rest, read, prefill = self.terms_of(theta, held[worker.id]) if worker.id in held else self._terms[theta][:3]
        prefill *= worker.t_pre_factor
        score = rest + worker.t_kv_factor * read + prefill + queued + (link if link > link_d else link_d)
        if running == 0:
            return score
        if not self.stretches:
            return score + self._delay_s(worker, prefill)
        step = worker.t_dec_factor * case.cost.t_dec(running, worker.context, theta)
        if step > self.longest_step_s:
            return inf
        return score + (queued + prefill) * step / (self.itl_limit_s - step)  # stretch - 1 = step / (limit - step)

    def least_step(self, theta: int) -> tuple[float, float]:
        """(Seconds, seconds for each token of the context) that no batch's step is below, but for the worker's factor.

        T_dec is linear in the context and not less for a larger batch, so that of one sequence is a bound for all.
        """
        if theta not in self._steps:
            flat, million = self.case.cost.t_dec(1, 0, theta), self.case.cost.t_dec(1, 1_000_000, theta)
            self._steps[theta] = _JUST_BELOW * flat, _JUST_BELOW * max(0.0, million - flat) / 1_000_000
        return self._steps[theta]

    def _delay_s(self, worker: WorkerView, prefill_s: float) -> float:
        """What the batch of another decode worker adds to the score of a prefill there; infinite when it has no slack."""
        stretch, itl_s, stall_s = self.beside(worker, prefill_s)
        return (worker.queued_s + prefill_s) * (stretch - 1) + stall_s if itl_s <= self.itl_limit_s else inf

    def terms(self, theta: int) -> Terms:
        """The terms on a worker of this theta that holds nothing; and the least that they are on any, whatever it holds."""
        if theta not in self._terms:
            rest, read, prefill = self.terms_of(theta, 0)
            least_read, least_prefill = read, prefill
            for held in self.case.round.held.values():
                _, its_read, its_prefill = self.terms_of(theta, held)
                if its_read < least_read:
                    least_read = its_read
                if its_prefill < least_prefill:
                    least_prefill = its_prefill
            self._terms[theta] = Terms(rest, read, prefill, least_read, least_prefill)
        return self._terms[theta]

    def terms_of(self, theta: int, held: int) -> tuple[float, float, float]:
        """(`rest`, `read`, `prefill`) of Terms on a worker without a batch that holds `held` tokens of the round."""
        round, cost, decode = self.case.round, self.case.cost, self.case.decode
        history, prefill = round.l_hist, self.prefill_s(theta, held)
        read = cost.t_kv(history - held, decode.theta, theta, "history") if history > held else 0.0
        back = decode.t_kv_factor * cost.t_kv(round.l_incr, theta, decode.theta, "increment")
        return back + (1 + _WAIT if decode.running else 1) * self._step_s, read, prefill

    def prefill_s(self, theta: int, held: int = 0) -> float:
        """T_pre of what is held neither there nor as history; the last token is always computed, to sample from. No factor."""
        round = self.case.round
        if held <= round.l_hist and round.l_incr > 0:
            if theta not in self._t_pre:
                self._t_pre[theta] = self.case.cost.t_pre(round.l_hist, round.l_incr, theta)
            return self._t_pre[theta]
        tokens = self.case.tokens
        held = min(max(held, round.l_hist), tokens - 1)
        return self.case.cost.t_pre(held, tokens - held, theta)

    def beside(self, worker: WorkerView, prefill_s: float) -> tuple[float, float, float]:
        """(Stretch, the batch's ITL meanwhile, the batch's delay) of `prefill_s` seconds of prefill next to the worker's batch."""
        if worker.running == 0:
            return 1.0, 0.0, 0.0
        step = worker.t_dec_factor * self.case.cost.t_dec(worker.running, worker.context, worker.theta)
        if self._mode == "slack":
            length = max(self.itl_limit_s, step * (1 + _FLOOR))
            return length / (length - step), length, 0.0
        if self._mode == "exclusive":
            return 1.0, step + prefill_s, prefill_s
        mixed = self._mixed_s(worker, step, min(self._chunk, self.case.round.l_incr))
        return mixed / max(mixed - step, 1e-9), mixed, prefill_s

    def _mixed_s(self, worker: WorkerView, step_s: float, chunk: int) -> float:
        """T_mixed of the worker's batch, whose step without a chunk takes `step_s`."""
        t_mixed = self.case.cost.t_mixed(worker.running, worker.context, chunk, worker.theta)
        # Whatever the two factors are, a chunk adds to a step.
        return max(worker.t_mixed_factor * t_mixed, step_s + LEAST_FACTOR * (t_mixed - step_s / worker.t_dec_factor))
