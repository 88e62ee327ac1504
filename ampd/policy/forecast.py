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
from ampd.policy.placing import ByTheta, Case
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
    """The candidates of one round. Terms that depend on theta and held tokens alone are computed once."""

    __slots__ = ("_case", "_chunk", "_itl_limit", "_longest_step_s", "_mode", "_step_s", "_t_pre", "_terms")

    def __init__(self, case: Case, mode: LocalPrefill, chunk: int, itl_limit_s: float) -> None:
        decode = case.decode
        self._case, self._mode, self._chunk, self._itl_limit = case, mode, chunk, itl_limit_s
        self._longest_step_s = itl_limit_s / (1 + _FLOOR) if mode == "slack" else itl_limit_s  # of a batch with slack
        self._step_s = case.cost.t_dec(decode.running + 1, decode.context + case.tokens, decode.theta)
        self._terms = ByTheta(self._terms_of)
        self._t_pre: dict[int, float] = {}

    def local(self) -> Outlook:
        """The round on its bound decode worker."""
        decode = self._case.decode
        prefill = self.prefill_s(decode.theta)
        stretch, itl_s, stall_s = self.beside(decode, prefill)
        finish = (decode.queued_s + prefill) * stretch
        return Outlook(finish, itl_s, finish + stall_s)

    def remotes(self) -> list[float]:
        """The predicted finish on each prefill worker of the view; infinite on those that are draining or too small."""
        case = self._case
        workers, tokens, link_d, held = case.view.prefill, case.tokens, case.decode.link_s, case.round.held
        own = ByTheta(lambda theta: self._terms[theta][0])
        finishes = [
            inf
            if w.draining or 0 < w.kv_total < tokens
            else own[w.theta] + w.queued_s + (w.link_s if w.link_s > link_d else link_d)
            for w in workers
        ]
        if held:
            ids = [w.id for w in workers]
            for id, hold in held.items():
                if id in ids:
                    theta = workers[ids.index(id)].theta
                    finishes[ids.index(id)] += self._terms_of(theta, hold)[0] - own[theta]
        return finishes

    def deflections(self, bound_s: float = inf, near: float = 0.0) -> tuple[list[WorkerView], list[float]]:
        """The other decode workers with slack and KV room, and the score on each.

        Those that are over `bound_s`, or over the best of them by more than a share of `near`, may be left out.
        """
        workers: list[WorkerView] = []
        scores: list[float] = []
        case, terms, most = self._case, self._terms, ByTheta(self._most_context)
        bound_worker, tokens, held, link_d = case.decode, case.tokens, case.round.held, case.decode.link_s
        t_dec, longest, limit, slack, factor = (
            case.cost.t_dec,
            self._longest_step_s,
            self._itl_limit,
            self._mode == "slack",
            1 + near,
        )
        for w in case.view.decode:
            running, context, theta = w.running, w.context, w.theta
            if running and context > most[theta]:
                continue
            own_s, prefill_s = terms[theta] if w.id not in held else self._terms_of(theta, held[w.id])
            link, queued = w.link_s, w.queued_s
            score = own_s + queued + (link if link > link_d else link_d)
            if score > bound_s or w.kv_free - w.kv_promised < tokens or w.draining or w is bound_worker:
                continue
            if running:
                if not slack:
                    score += self._delay_s(w, prefill_s)
                elif (step := t_dec(running, context, theta)) <= longest:
                    score += (queued + prefill_s) * step / (limit - step)  # stretch - 1 = step / (limit - step)
                else:
                    continue
            if score <= bound_s and score < inf:
                workers.append(w)
                scores.append(score)
                if score * factor < bound_s:
                    bound_s = score * factor
        return workers, scores

    def _most_context(self, theta: int) -> float:
        """No batch with more tokens has slack: T_dec is linear in the context and not less for a larger batch."""
        flat, million = self._case.cost.t_dec(1, 0, theta), self._case.cost.t_dec(1, 1_000_000, theta)
        if million <= flat:
            return inf if flat <= self._longest_step_s else -1
        return (self._longest_step_s - flat) / (million - flat) * 1_000_000 + 1

    def _delay_s(self, worker: WorkerView, prefill_s: float) -> float:
        """What the batch of another decode worker adds to the score of a prefill there; infinite when it has no slack."""
        stretch, itl_s, stall_s = self.beside(worker, prefill_s)
        return (worker.queued_s + prefill_s) * (stretch - 1) + stall_s if itl_s <= self._itl_limit else inf

    def _terms_of(self, theta: int, held: int = 0) -> tuple[float, float]:
        """(The round's own seconds, T_pre of them) on a worker other than D, without a batch, that holds `held` tokens of it."""
        round, cost, theta_d = self._case.round, self._case.cost, self._case.decode.theta
        history, prefill = round.l_hist, self.prefill_s(theta, held)
        read = cost.t_kv(history - held, theta_d, theta, "history") if history > held else 0.0
        return read + prefill + cost.t_kv(round.l_incr, theta, theta_d, "increment") + self._step_s, prefill

    def prefill_s(self, theta: int, held: int = 0) -> float:
        """T_pre of what is held neither there nor as history; the last token is always computed, to sample from."""
        round = self._case.round
        if held <= round.l_hist and round.l_incr > 0:
            if theta not in self._t_pre:
                self._t_pre[theta] = self._case.cost.t_pre(round.l_hist, round.l_incr, theta)
            return self._t_pre[theta]
        tokens = self._case.tokens
        held = min(max(held, round.l_hist), tokens - 1)
        return self._case.cost.t_pre(held, tokens - held, theta)

    def beside(self, worker: WorkerView, prefill_s: float) -> tuple[float, float, float]:
        """(Stretch, the batch's ITL meanwhile, the batch's delay) of `prefill_s` seconds of prefill next to the worker's batch."""
        if worker.running == 0:
            return 1.0, 0.0, 0.0
        cost = self._case.cost
        step = cost.t_dec(worker.running, worker.context, worker.theta)
        if self._mode == "slack":
            length = max(self._itl_limit, step * (1 + _FLOOR))
            return length / (length - step), length, 0.0
        if self._mode == "exclusive":
            return 1.0, step + prefill_s, prefill_s
        mixed = cost.t_mixed(worker.running, worker.context, min(self._chunk, self._case.round.l_incr), worker.theta)
        return mixed / max(mixed - step, 1e-9), mixed, prefill_s
