"""The candidates of a round near the best of them, each kind found in one pass over the workers.

A pass compares the least that a worker's score can be with the best score so far, and looks closely only at those that may be near
it: of a thousand workers these are few. Left out are workers that are no candidates; those over `bound_s`, or over the best of
their kind by more than a share of `near`, may be.
"""

from __future__ import annotations

from math import inf

from ampd.policy.forecast import Forecast
from ampd.policy.types import WorkerView

Scored = tuple[list[WorkerView], list[float]]


def near_bound(score: float, near: float) -> float:
    """Up to where others are near-equals of a score, by a caller's arithmetic too."""
    return score * (1 + near) * (1 + 1e-12)


def prefill_workers(forecast: Forecast, bound_s: float = inf, near: float = 0.0) -> Scored:
    """Prefill workers that take work and can hold the prompt, and the predicted finish on each."""
    workers: list[WorkerView] = []
    scores: list[float] = []
    case, theta, own, least = forecast.case, 0, 0.0, 0.0
    held, link_d, tokens, factor = case.round.held, case.decode.link_s, case.tokens, near_bound(1.0, near)
    for w in case.view.prefill:
        if w.theta != theta:
            theta = w.theta
            own, _, least, _ = forecast.terms(theta)
        queued = w.queued_s
        if least + queued > bound_s:
            continue
        link = w.link_s
        own_s = own if w.id not in held else forecast.terms_of(theta, held[w.id])[0]
        score = own_s + queued + (link if link > link_d else link_d)
        if score <= bound_s and score < inf and not w.draining and not 0 < w.kv_total < tokens:
            workers.append(w)
            scores.append(score)
            if score * factor < bound_s:
                bound_s = score * factor
    return workers, scores


def decode_workers(forecast: Forecast, bound_s: float = inf, near: float = 0.0) -> Scored:
    """Decode workers other than the bound one with slack and KV room, and the score on each."""
    workers: list[WorkerView] = []
    scores: list[float] = []
    case, theta, least, most = forecast.case, 0, 0.0, inf
    tokens, bound_worker, factor = case.tokens, case.decode, near_bound(1.0, near)
    for w in case.view.decode:
        if w.theta != theta:
            theta = w.theta
            least = forecast.terms(theta)[2]
            most = forecast.most_context(theta, bound_s)
        if w.context > most and w.running:
            continue
        if least + w.queued_s > bound_s or w.kv_free - w.kv_promised < tokens or w is bound_worker or w.draining:
            continue
        score = forecast.deflected(w)
        if score <= bound_s and score < inf:
            workers.append(w)
            scores.append(score)
            if score * factor < bound_s:
                bound_s = score * factor
                most = forecast.most_context(theta, bound_s)
    return workers, scores
