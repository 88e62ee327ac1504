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

from collections.abc import Callable, Sequence
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
    """The candidates of one round. Terms that depend on theta and held tokens alone are computed once."""

    __slots__ = ("_back", "_case", "_chunk", "_itl_limit", "_mode", "_own", "_step_s", "_t_pre", "_tokens")

    def __init__(self, case: Case, mode: LocalPrefill, chunk: int, itl_limit_s: float) -> None:
        round, decode = case.round, case.decode
        self._case, self._mode, self._chunk, self._itl_limit = case, mode, chunk, itl_limit_s
        self._tokens = round.l_hist + round.l_incr
        self._step_s = case.cost.t_dec(decode.running + 1, decode.context + self._tokens, decode.theta)
        self._own = _ByTheta(self._own_s)
        self._back = _ByTheta(self._back_s)
        self._t_pre: dict[tuple[int, int], float] = {}

    def remotes(self) -> list[float]:
        """The predicted finish on each prefill worker of the case."""
        return self._finishes(self._case.prefill)

    def local(self) -> Outlook:
        """The round on its bound decode worker."""
        decode = self._case.decode
        stretch, itl_s, stall_s = self.beside(decode, prefill := self.t_pre(decode.theta, self._case.round.l_hist))
        finish = (decode.queued_s + prefill) * stretch
        return Outlook(finish, itl_s, finish + stall_s)

    def deflections(self, bound_s: float = inf, near: float = 0.0) -> tuple[list[WorkerView], list[float]]:
        """The other decode workers with slack and KV room, and the score on each.

        Those that are sure to be over `bound_s`, or over the best of them by more than a share of `near`, may be left out.
        """
        workers: list[WorkerView] = []
        scores: list[float] = []
        decode, tokens, own = self._case.view.decode, self._tokens, self._case.decode
        alone = self._finishes(decode)
        for i in sorted([i for i, seconds in enumerate(alone) if seconds <= bound_s], key=alone.__getitem__):
            worker, score = decode[i], alone[i]
            if score > bound_s:  # a batch only delays it further, and so it is for all that follow
                break
            if worker.kv_free - worker.kv_promised < tokens or worker.draining or worker is own:
                continue
            if worker.running:
                prefill = self.prefill(worker)
                stretch, itl_s, stall_s = self.beside(worker, prefill)
                if itl_s > self._itl_limit:
                    continue
                score += (worker.queued_s + prefill) * (stretch - 1) + stall_s
            workers.append(worker)
            scores.append(score)
            bound_s = min(bound_s, score * (1 + near))
        return workers, scores

    def _finishes(self, workers: Sequence[WorkerView]) -> list[float]:
        """The predicted finish on each worker other than D, as if no batch ran there."""
        own, link_d, held = self._own, self._case.decode.link_s, self._case.round.held
        finishes = [own[w.theta] + w.queued_s + (w.link_s if w.link_s > link_d else link_d) for w in workers]
        if held:
            for i in [i for i, w in enumerate(workers) if w.id in held]:
                theta = workers[i].theta
                finishes[i] += self._own_s(theta, held[workers[i].id]) - own[theta]
        return finishes

    def _own_s(self, theta: int, held: int = 0) -> float:
        """The round's own seconds on a worker other than D that holds `held` tokens of the prompt."""
        history, theta_d = self._case.round.l_hist, self._case.decode.theta
        read = self._case.cost.t_kv(history - held, theta_d, theta, "history") if history > held else 0.0
        return read + self.t_pre(theta, max(held, history)) + self._back[theta]

    def _back_s(self, theta: int) -> float:
        """The increment's way to D, and D's first step."""
        return self._case.cost.t_kv(self._case.round.l_incr, theta, self._case.decode.theta, "increment") + self._step_s

    def prefill(self, worker: WorkerView) -> float:
        """T_pre on a worker other than D."""
        round = self._case.round
        return self.t_pre(worker.theta, max(round.held.get(worker.id, 0), round.l_hist))

    def t_pre(self, theta: int, held: int) -> float:
        """Prefill of what `held` leading tokens leave to compute; the last token always is, to sample from."""
        key = (theta, min(held, self._tokens - 1))
        if key not in self._t_pre:
            self._t_pre[key] = self._case.cost.t_pre(key[1], self._tokens - key[1], theta)
        return self._t_pre[key]

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


class _ByTheta(dict[int, float]):
    """A term that only depends on theta, made when first asked for."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[int], float]) -> None:
        self._make = make

    def __missing__(self, theta: int) -> float:
        term = self[theta] = self._make(theta)
        return term


def named(workers: Sequence[WorkerView], seconds: Sequence[float]) -> dict[str, float]:
    """Estimates under their keys in a decision."""
    return {f"remote:{w.id}": s for w, s in zip(workers, seconds, strict=True)}
