"""Why a round went where it went: one log line a decision, one when it ends, and the `ampd` object of the answer."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from ampd.coordinator.logs import GatheringHandler
from ampd.coordinator.round import Phase, Round

log = logging.getLogger("ampd.coordinator.round")

_LOGGED = 128  # workers up to which the log has every candidate's estimate


def cached_tokens(round: Round) -> int:
    """Prompt tokens whose KV was not computed in this round: read from a worker, or found in a prefix cache."""
    stats, prefilled = round.stats, round.prefilled
    if prefilled is None or stats is None or stats.recompute is not None:
        cached = stats.cached_tokens if stats is not None else 0
    else:
        cached = prefilled.read_tokens + prefilled.cached_tokens
    return min(cached, len(round.ask.token_ids))


def usage(round: Round) -> dict[str, Any]:
    """The answer's `completion_usage`, all choices counted."""
    prompt = len(round.ask.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": round.tokens_out,
        "total_tokens": prompt + round.tokens_out,
        "prompt_tokens_details": {"cached_tokens": cached_tokens(round)},
    }


def decided(round: Round, most: int | None = None) -> dict[str, Any]:
    """Inputs and outcome of the routing decision. Sizes in tokens, estimates in seconds by candidate.

    The estimates are left out when the cluster has more than `most` workers.
    """
    decision = round.decision
    remote = decision is not None and decision.path == "remote"
    moved = round.rebinding
    return {
        "path": decision and decision.path,
        "reason": decision and decision.reason,
        "estimates": dict(decision.estimates) if decision and (most is None or _workers(round) <= most) else {},
        "extrapolated": round.extrapolated,
        "session": round.key and round.key.id,
        "parent": round.key and round.key.parent,
        "derived": bool(round.key and round.key.derived),
        "round": round.number,
        "ttft_target_s": round.ask.ttft_target_s,
        "itl_target_s": round.ask.itl_target_s,
        "priority": round.ask.priority,
        "deflected": remote and any(w.id == decision.worker for w in round.view.decode) if decision else False,
        "prefill_worker": decision.worker if decision and remote else None,
        "decode_worker": round.bound.id,
        "prompt_tokens": len(round.ask.token_ids),
        "l_hist": round.history.l_hist,
        "l_incr": round.l_incr,
        "rewritten": round.history.rewritten,
        "held": round.held.get(decision.worker, 0) if decision and remote else 0,
        "rebound": round.rebound,
        "rebind_cost_s": moved and moved.cost_s,
        "rebind_gain_s": moved and moved.gain_s,
        "prefill_failed": round.prefill_failed,
        "degraded": round.degraded,
    }


def measured(round: Round) -> dict[str, Any]:
    """What the workers measured; seconds and tokens. See RoundStats and PrefillResult."""
    stats, prefilled = round.stats, round.prefilled
    if stats is None:
        return {}
    at = prefilled or stats  # where the prefill ran
    return {
        "ttft_s": stats.ttft_s,
        "itl_s": stats.itl_s,
        "queue_s": at.queue_s,
        "read_s": (prefilled.read_s if prefilled else 0.0) + stats.read_s,
        "prefill_s": prefilled.prefill_s if prefilled else max(0.0, stats.ttft_s - stats.queue_s),
        "history_read_tokens": prefilled.read_tokens if prefilled else 0,
        "increment_read_tokens": stats.read_tokens,
        "cached_tokens": cached_tokens(round),
        "recompute": stats.recompute or (prefilled.recompute if prefilled else None),
    }


def log_decision(round: Round) -> None:
    """One JSON line; of the session only its hash.

    Of a large cluster it has no estimates: making and writing a thousand takes longer than the decision. The answer has them.
    """
    if log.isEnabledFor(logging.INFO):
        _line("ampd.route", {"id": round.id, "attempt": round.attempt, **decided(round, _LOGGED)})


def _workers(round: Round) -> int:
    return len(round.view.prefill) + len(round.view.decode)


def log_end(round: Round, outcome: str, error: str) -> None:
    """One JSON line when the round is over, with the phase in which it was left, and with what failed if it did."""
    phase = Phase.STREAMING if round.left else round.phase  # what was left while it streamed has been closed by now
    figures = {"session": round.key and round.key.id, "phase": phase.value, "tokens_out": round.tokens_out, **measured(round)}
    _line("ampd.round", {"id": round.id, "outcome": outcome, "error": error or None, **figures})


def _line(event: str, fields: dict[str, Any]) -> None:
    if log.isEnabledFor(logging.INFO):
        text = msgspec.json.encode({"event": event, **fields}).decode()
        root = logging.getLogger().handlers
        if len(root) == 1 and isinstance(root[0], GatheringHandler) and not log.handlers:
            root[0].put(log, text)
        else:
            log.info("%s", text)
