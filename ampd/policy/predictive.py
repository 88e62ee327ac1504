"""`policy.name: predictive`, ampd's own: the candidate that is predicted to finish first among those that meet both targets.

Candidates are the prefill workers, the bound decode worker, and with `deflect` the other decode workers that have slack.
`forecast` predicts what the round would meet on each, from the queues and the cost model only. Then

1. of the candidates within their limits (below) the one with the least predicted finish, plus the time for which it stalls a batch;
2. if there is none, the one that misses by the least: the larger of predicted / limit over TTFT and ITL;
3. among candidates within `near` of the best a random one, so that Coordinators that read the same view do not herd. A window may
   only speak here: a worker whose windowed TTFT is over twice the least of its near-equals is passed over.

The limits are the round's own targets, times `margin` for usual rounds (priority 0), times 1 for urgent ones (above 0: they may use
all of it), times margin squared for background ones (below 0: they leave slack for others).

Where it departs from Algorithm 1: least finish instead of random first fit; no gate on windowed means, which lag and may be empty;
the batch that a local prefill delays, busy links and the prefill workers' own caches are in the prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random

from ampd.policy import shortlist
from ampd.policy.forecast import Forecast
from ampd.policy.placing import Case, Estimates, named, random_one
from ampd.policy.settings import LocalPrefill
from ampd.policy.types import Decision, Path, Reason, WorkerView

_FAR = 2.0


@dataclass(frozen=True, slots=True)
class Predictive:
    """The policy. A decision's estimates are all candidates' predicted finishes, and of "local" its batch's ITL and stall."""

    margin: float
    near: float
    deflect: bool
    local_prefill: LocalPrefill
    prefill_chunk: int

    def choose(self, case: Case) -> Decision:
        round = case.round
        factor = self.factor(round.priority)
        ttft_limit, itl_limit = factor * round.ttft_target_s, factor * round.itl_target_s
        forecast = Forecast(case, self.local_prefill, self.prefill_chunk, itl_limit)
        local = forecast.local()
        meets = local.finish_s <= ttft_limit and local.itl_s <= itl_limit
        local_score = local.score if meets else inf
        workers, scores, least = self._others(case, forecast, local_score)
        if not workers and not (self.deflect and len(case.view.decode) > 1) and not case.prefill:
            return self._decide(case, forecast, case.decode, "only_local")
        if meets or least <= ttft_limit:
            bound = min(local_score, least if least <= ttft_limit else inf) * (1 + self.near)
            most = min(bound, ttft_limit)
            pool = [w for w, s in zip(workers, scores, strict=True) if s <= most]
            if local_score <= bound:
                pool.append(case.decode)
            return self._decide(case, forecast, pick(pool, case.rng), "least_finish")
        misses = max(local.finish_s / ttft_limit, local.itl_s / itl_limit)
        bound = min(least / ttft_limit, misses) * (1 + self.near)
        pool = [w for w, s in zip(workers, scores, strict=True) if s / ttft_limit <= bound]
        if misses <= bound:
            pool.append(case.decode)
        return self._decide(case, forecast, pick(pool, case.rng), "least_violation")

    def local(self, case: Case, reason: Reason) -> Decision:
        return self._decide(case, self._forecast(case), case.decode, reason)

    def remote(self, case: Case, reason: Reason) -> Decision | None:
        forecast = self._forecast(case)
        workers, scores, least = self._others(case, forecast, inf)
        if least == inf:
            return None
        bound = least * (1 + self.near)
        chosen = pick([w for w, s in zip(workers, scores, strict=True) if s <= bound], case.rng)
        return self._decide(case, forecast, chosen, reason)

    def factor(self, priority: int) -> float:
        """The share of its targets that a round of this priority may be predicted to use."""
        return self.margin if priority == 0 else 1.0 if priority > 0 else self.margin**2

    def _forecast(self, case: Case) -> Forecast:
        limit = self.factor(case.round.priority) * case.round.itl_target_s
        return Forecast(case, self.local_prefill, self.prefill_chunk, limit)

    def _others(self, case: Case, forecast: Forecast, local_score: float) -> tuple[Sequence[WorkerView], list[float], float]:
        """Candidates other than the bound worker, their scores, and the least of them.

        Those that are no near-equal of the best, the bound worker included, may be missing.
        """
        more: list[WorkerView] = []
        bound = shortlist.near_bound(local_score, self.near)
        if self.deflect:  # these first: their queues are the shorter ones, so they leave the least to look at
            more, their_scores = shortlist.decode_workers(forecast, bound, self.near)
            if more:
                bound = min(bound, shortlist.near_bound(min(their_scores), self.near))
        workers, scores = shortlist.prefill_workers(forecast, bound, self.near)
        if more:
            workers += more
            scores += their_scores
        return workers, scores, min(scores, default=inf)

    def _decide(self, case: Case, forecast: Forecast, worker: WorkerView, reason: Reason) -> Decision:
        if worker is case.decode:
            held = 0
        else:
            held = case.round.held.get(worker.id, 0)
            if worker.role == "decode" and reason == "least_finish":
                reason = "deflect"
        path: Path = "local" if worker is case.decode else "remote"
        prefill = worker.t_pre_factor * forecast.prefill_s(worker.theta, held)
        return Decision(path, worker.id, reason, prefill, Estimates(lambda: self._estimates(case, forecast)))

    def _estimates(self, case: Case, forecast: Forecast) -> dict[str, float]:
        local = forecast.local()
        estimates = {"local": local.finish_s, "local.itl": local.itl_s, "local.stall": local.score - local.finish_s}
        estimates |= named(*shortlist.prefill_workers(forecast, near=inf))
        if self.deflect:
            estimates |= named(*shortlist.decode_workers(forecast, near=inf))
        return estimates


def pick(pool: Sequence[WorkerView], rng: Random) -> WorkerView:
    """A random one of near-equals, those left out whose windowed TTFT is far above the least among them."""
    if len(pool) > 1:
        windows = [w.ttft_s for w in pool if w.ttft_s is not None and w.role == "prefill"]
        if windows:
            far = _FAR * min(windows)
            pool = [w for w in pool if w.ttft_s is None or w.role != "prefill" or w.ttft_s <= far]
    return random_one(pool, rng)
