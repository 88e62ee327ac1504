"""Binding: which decode worker a new session lives on, and whether an old one should leave its own.

The paper binds by memory usage and never moves a session. `kv_room` is that rule, counting what is free, pinned and promised.
`predicted_load` looks at what decoding will be like instead: the step time of the batch that a worker's sessions are expected to
form. A session that waits for its tools decodes nothing, yet it comes back; so a worker's share of running and waiting sessions is
taken as what all decode workers show now.

    duty     = sum(context) / sum(context + kv_pinned)                 over all decode workers; 1 when nothing is held
    context  = duty x (context + kv_pinned) + kv_promised + the new prompt         of the worker
    batch    = context / (sum(context) / sum(running))                 sequences of the mean size that runs; 1 at least
    load     = T_dec(batch, context, theta) x the worker's factor of it
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ampd.errors import NoWorkers
from ampd.policy.placing import bound_worker
from ampd.policy.types import ClusterView, CostModel, Round, WorkerView

Rule = Literal["kv_room", "predicted_load"]
RebindRule = Literal["never", "when_cheaper"]

# Decode steps that a round is expected to take. An agent's round answers with some tens to some hundreds of tokens.
_STEPS = 128


class Rebinding(msgspec.Struct, frozen=True):
    """A session should move to `worker`. `cost_s`: its history, computed anew there; `gain_s`: what the round saves otherwise."""

    worker: WorkerView
    cost_s: float
    gain_s: float


def kv_room(worker: WorkerView) -> int:
    """Tokens of KV that a new session can count on: free ones less those promised to sessions bound just now. May be negative."""
    return worker.kv_free - worker.kv_promised


def choose_decode(view: ClusterView, tokens: int, rule: Rule = "kv_room", cost: CostModel | None = None) -> WorkerView:
    """The decode worker for a session whose first prompt has `tokens` tokens.

    `kv_room`: the most KV room; ties go to the fewest running rounds, then to the lowest id. `predicted_load`: the least load among
    those with room for the prompt, then as `kv_room`, which also decides when none has room. Workers that can never hold the prompt
    are passed over while another can. Draining workers take no new session.
    Raises NoWorkers when none is left, and ValueError when `predicted_load` is asked for without a cost model.
    """
    live = [w for w in view.decode if not w.draining]
    if not live:
        raise NoWorkers("no live decode worker takes new sessions; are the decode workers running?")
    fitting = [w for w in live if w.kv_total >= tokens] or live
    if rule == "predicted_load":
        if cost is None:
            raise ValueError("binding by predicted_load needs a cost model")
        if roomy := [w for w in fitting if kv_room(w) >= tokens]:
            return _least_loaded(roomy, view, tokens, cost)
    return min(fitting, key=lambda w: (w.kv_promised - w.kv_free, w.running, w.id))


def _least_loaded(workers: list[WorkerView], view: ClusterView, tokens: int, cost: CostModel) -> WorkerView:
    running = context = pinned = 0
    for w in view.decode:
        running += w.running
        context += w.context
        pinned += w.kv_pinned
    duty = context / (context + pinned) if context else 1.0
    mean = context / running if running and context else tokens

    def load(w: WorkerView) -> tuple[float, int, int, int]:
        expected = duty * (w.context + w.kv_pinned) + w.kv_promised + tokens
        batch = max(1, round(expected / max(mean, 1)))
        return w.t_dec_factor * cost.t_dec(batch, int(expected), w.theta), w.kv_promised - w.kv_free, w.running, w.id

    return min(workers, key=load)


def rebind(
    placement: Round, view: ClusterView, cost: CostModel, rule: RebindRule = "never", steps: int = _STEPS
) -> Rebinding | None:
    """Whether a session should leave the decode worker that it is bound to, and for which; None: it stays.

    A move loses the history: the new worker computes the whole prompt. `cost_s` is that: T_pre(0, l_hist + l_incr) less
    T_pre(l_hist, l_incr), there. `gain_s` is by how much the round is served sooner there apart from it: the wait in the worker's
    prefill queue, the increment's prefill, and `steps` decode steps of the batch with the round in it. `when_cheaper` moves to the
    worker with room for the prompt where gain less cost is largest, if it is positive.
    Raises WorkerGone when the bound worker is not live; such a session is bound anew by `choose_decode`.
    """
    if rule == "never":
        return None
    bound = bound_worker(placement, view)
    tokens = placement.l_hist + placement.l_incr
    stays_s = _served_s(bound, placement, cost, steps)
    best: Rebinding | None = None
    for worker in view.decode:
        if worker is bound or worker.draining or kv_room(worker) < tokens:
            continue
        increment_s = cost.t_pre(placement.l_hist, placement.l_incr, worker.theta)
        history_s = worker.t_pre_factor * (cost.t_pre(0, tokens, worker.theta) - increment_s)
        gain_s = stays_s - _served_s(worker, placement, cost, steps)
        if gain_s - history_s > (best.gain_s - best.cost_s if best is not None else 0.0):
            best = Rebinding(worker, history_s, gain_s)
    return best


def _served_s(worker: WorkerView, placement: Round, cost: CostModel, steps: int) -> float:
    """Seconds to serve the round on a worker that holds its history."""
    prefill = worker.t_pre_factor * cost.t_pre(placement.l_hist, placement.l_incr, worker.theta)
    step = worker.t_dec_factor * cost.t_dec(worker.running + 1, worker.context + placement.l_hist + placement.l_incr, worker.theta)
    return worker.queued_s + prefill + steps * step
