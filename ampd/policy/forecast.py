"""What one round would meet on each candidate: when its first token leaves, and what that does to a running batch.

    remote P     queued_s + link + T_kv(history that P lacks) + T_pre(what P computes) + T_kv(increment back) + first step on D
    local D      (queued_s + T_pre) x stretch
    deflected W  as remote, with queued_s + T_pre stretched by W's own batch

- P and W compute the prompt less max(what their own cache holds, the history on D), and read from D only what they lack of it.
- link: the seconds of transfers that the busier of both ends still owes.
- The first token of a round prefilled elsewhere leaves after one step of D's batch; the last chunk of a local prefill samples it.
- A prefill beside a running batch, whose step takes T_dec, gets by `policy.local_prefill`
    slack      the part of each step that the ITL target leaves: stretch = target / (target - T_dec), steps as long as the target
    chunked    steps of T_mixed, of which T_mixed - T_dec is prefill
    exclusive  all of the time: the batch stands still for T_pre
  The last two delay the batch by the prefill's own time, which is charged to it as `stall_s`.

Nothing here reads a window.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from ampd.policy.chunks import ChunkLimits
from ampd.policy.placing import Case
from ampd.policy.settings import LocalPrefill
from ampd.policy.types import WorkerView

# What a batch without slack still gives a prefill, as a share of its own step (see `chunks`).
_FLOOR = ChunkLimits(max_tokens=1).floor_share


class Outlook(NamedTuple):
    """What the round would meet on its decode worker. Candidates are compared by `score`: the finish, plus the batch's delay."""

    finish_s: float
    itl_s: float
    score: float


class Forecast:
    """The candidates of one round. Terms that depend on theta alone are computed once. `itl_limit_s` bounds a step of a batch."""

    __slots__ = ("_chunk", "_longest_step_s", "_mode", "_step_s", "_steps", "_t_pre", "_terms", "case", "itl_limit_s")

    def __init__(self, case: Case, mode: LocalPrefill, chunk: int, itl_limit_s: float) -> None:
        decode = case.decode
        self.case, self._mode, self._chunk, self.itl_limit_s = case, mode, chunk, itl_limit_s
        self._longest_step_s = itl_limit_s / (1 + _FLOOR) if mode == "slack" else itl_limit_s  # of a batch with slack
        self._step_s = case.cost.t_dec(decode.running + 1, decode.context + case.tokens, decode.theta)
        self._terms: dict[int, tuple[float, float, float, float]] = {}
        self._steps: dict[int, tuple[float, float]] = {}  # by theta: T_dec of one sequence without tokens, and of each token
        self._t_pre: dict[int, float] = {}

    def local(self) -> Outlook:
        """The round on its bound decode worker."""
        decode = self.case.decode
        prefill = self.prefill_s(decode.theta)
        stretch, itl_s, stall_s = self.beside(decode, prefill)
        finish = (decode.queued_s + prefill) * stretch
        return Outlook(finish, itl_s, finish + stall_s)

    def deflected(self, worker: WorkerView) -> float:
        """The score on a decode worker other than D; infinite on one without slack."""
        case, held, running, link, link_d = self.case, self.case.round.held, worker.running, worker.link_s, self.case.decode.link_s
        theta, queued = worker.theta, worker.queued_s
        own, prefill = self.terms_of(theta, held[worker.id]) if worker.id in held else self._terms[theta][:2]
        score = own + queued + (link if link > link_d else link_d)
        if running == 0:
            return score
        if self._mode != "slack":
            return score + self._delay_s(worker, prefill)
        step = case.cost.t_dec(running, worker.context, theta)
        if step > self._longest_step_s:
            return inf
        return score + (queued + prefill) * step / (self.itl_limit_s - step)  # stretch - 1 = step / (limit - step)

    def most_context(self, theta: int, bound_s: float) -> float:
        """No batch that attends to more tokens has slack, or so much that a prefill beside it can score `bound_s` or less.

        T_dec is linear in the context and not less for a larger batch, so that of one sequence is a bound for all.
        """
        if theta not in self._steps:
            flat, million = self.case.cost.t_dec(1, 0, theta), self.case.cost.t_dec(1, 1_000_000, theta)
            self._steps[theta] = flat, max(0.0, million - flat) / 1_000_000
        (flat, slope), step = self._steps[theta], self._longest_step_s
        if self._mode == "slack" and bound_s < inf:
            _, _, own, prefill = self._terms[theta]
            spare = max(0.0, bound_s - own)
            step = min(step, self.itl_limit_s * spare / (spare + prefill))
        if slope == 0:
            return inf if flat <= step else -1
        return (step - flat) / slope + 1

    def _delay_s(self, worker: WorkerView, prefill_s: float) -> float:
        """What the batch of another decode worker adds to the score of a prefill there; infinite when it has no slack."""
        stretch, itl_s, stall_s = self.beside(worker, prefill_s)
        return (worker.queued_s + prefill_s) * (stretch - 1) + stall_s if itl_s <= self.itl_limit_s else inf

    def terms(self, theta: int) -> tuple[float, float, float, float]:
        """`terms_of` on a worker of this theta that holds nothing; and the least that each is on any, whatever it holds."""
        if theta not in self._terms:
            own, prefill = self.terms_of(theta, 0)
            least, least_prefill = own, prefill
            for held in self.case.round.held.values():
                its, its_prefill = self.terms_of(theta, held)
                if its < least:
                    least = its
                if its_prefill < least_prefill:
                    least_prefill = its_prefill
            self._terms[theta] = own, prefill, least, least_prefill
        return self._terms[theta]

    def terms_of(self, theta: int, held: int) -> tuple[float, float]:
        """(The round's own seconds, T_pre of them) on a worker other than D, without a batch, that holds `held` tokens of it."""
        round, cost, theta_d = self.case.round, self.case.cost, self.case.decode.theta
        history, prefill = round.l_hist, self.prefill_s(theta, held)
        read = cost.t_kv(history - held, theta_d, theta, "history") if history > held else 0.0
        return read + prefill + cost.t_kv(round.l_incr, theta, theta_d, "increment") + self._step_s, prefill

    def prefill_s(self, theta: int, held: int = 0) -> float:
        """T_pre of what is held neither there nor as history; the last token is always computed, to sample from."""
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
        cost = self.case.cost
        step = cost.t_dec(worker.running, worker.context, worker.theta)
        if self._mode == "slack":
            length = max(self.itl_limit_s, step * (1 + _FLOOR))
            return length / (length - step), length, 0.0
        if self._mode == "exclusive":
            return 1.0, step + prefill_s, prefill_s
        mixed = cost.t_mixed(worker.running, worker.context, min(self._chunk, self.case.round.l_incr), worker.theta)
        return mixed / max(mixed - step, 1e-9), mixed, prefill_s
