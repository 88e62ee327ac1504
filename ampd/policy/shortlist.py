"""The candidates of a round near the best of them, each kind found in one pass over the workers.

A pass compares the least that a worker's score can be with the best score so far, and looks closely only at those that may be near
it: of a thousand workers these are few. Left out are workers that are no candidates; those over `bound_s`, or over the best of
their kind by more than a share of `near`, may be.
"""

from __future__ import annotations

from math import inf

from ampd.policy.forecast import Forecast
from ampd.policy.types import LEAST_FACTOR, WorkerView

Scored = tuple[list[WorkerView], list[float]]


def near_bound(score: float, near: float) -> float:
    """Up to where others are near-equals of a score, by a caller's arithmetic too."""
    return score * (1 + near) * (1 + 1e-12)


def prefill_workers(forecast: Forecast, bound_s: float = inf, near: float = 0.0) -> Scored:
    """Prefill workers that take work and can hold the prompt, and the predicted finish on each."""
    workers: list[WorkerView] = []
    scores: list[float] = []
    case, theta, floor = forecast.case, 0, 0.0
    rest = read = prefill = least_read = least_prefill = 0.0
    held, link_d, tokens, factor = case.round.held, case.decode.link_s, case.tokens, near_bound(1.0, near)
    for w in case.view.prefill:
        if w.theta != theta:
            theta = w.theta
            rest, read, prefill, least_read, least_prefill = forecast.terms(theta)
            floor = rest + LEAST_FACTOR * (least_read + least_prefill)
        queued = w.queued_s
        if floor + queued > bound_s:
            continue
        link = w.link_s
        if w.id in held:
            _, its_read, its_prefill = forecast.terms_of(theta, held[w.id])
            score = rest + w.t_kv_factor * its_read + w.t_pre_factor * its_prefill + queued
        else:
            score = rest + w.t_kv_factor * read + w.t_pre_factor * prefill + queued
        score += link if link > link_d else link_d
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
    case, theta, flat, slope = forecast.case, 0, 0.0, 0.0
    rest = least_read = least_prefill = 0.0
    tokens, bound_worker, factor = case.tokens, case.decode, near_bound(1.0, near)
    longest, limit, stretches = forecast.longest_step_s, forecast.itl_limit_s, forecast.stretches
    for w in case.view.decode:
        if w.theta != theta:
            theta = w.theta
            rest, _, _, least_read, least_prefill = forecast.terms(theta)
            flat, slope = forecast.least_step(theta)
        step = w.t_dec_factor * (flat + slope * w.context)
        if step > longest and w.running:
            continue
        queued, prefill = w.queued_s, w.t_pre_factor * least_prefill
        spare = bound_s - rest - w.t_kv_factor * least_read - prefill - queued
        if spare < 0 or w.kv_free - w.kv_promised < tokens or w is bound_worker or w.draining:
            continue
        if stretches and w.running and step * (spare + queued + prefill) > limit * spare:  # the stretch takes more than is spare
            continue
        score = forecast.deflected(w)
        if score <= bound_s and score < inf:
            workers.append(w)
            scores.append(score)
            if score * factor < bound_s:
                bound_s = score * factor
    return workers, scores
