"""What policies see and what they answer. Plain values, no I/O, no clock: callers pass `now`.

Times in seconds, sizes in tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

Role = Literal["prefill", "decode"]
Path = Literal["local", "remote"]
Direction = Literal["history", "increment"]

# The closed set of reasons a decision can carry.
Reason = Literal[
    "prefill_slack",  # Algorithm 1, lines 1-3: a prefill worker's windowed TTFT is under alpha x target
    "decode_slack",  # Algorithm 1, lines 4-5: the bound decode worker's windowed ITL is under beta x target
    "cost_local",  # Algorithm 1, line 6: Equation 1 is the smaller
    "cost_remote",  # Algorithm 1, line 6: Equation 2 is the smaller
    "least_finish",  # predictive: of the candidates that meet both targets, the one predicted to finish first
    "least_violation",  # predictive: no candidate meets both targets, this one misses them by the least
    "deflect",  # predictive: another decode worker has slack and finishes first
    "always_remote",  # dynamo: every prefill is remote
    "always_local",  # local_only: every prefill is local
    "isl_bounded",  # conditional_disagg: short, and mostly held by the decode worker, so local
    "prefill_busy",  # conditional_disagg: the chosen prefill worker is over its busy line, so local
    "decode_busy",  # conditional_disagg: it would be local, but the decode worker is over its busy line
    "not_bypassed",  # conditional_disagg: nothing speaks for local, so remote
    "first_round",  # ppd: a session's first prefill is remote
    "short_increment",  # ppd, prefix_decider: fewer new tokens than the threshold, or too short a prompt, so local
    "long_increment",  # ppd, prefix_decider: as many new tokens as the threshold or more, so remote
    "only_local",  # there is no other worker that could prefill
    "engine_needs_local",  # the request uses a feature that only works locally (several choices, prompt logprobs)
    "prefill_failed",  # the chosen prefill worker failed: the round goes on where it is bound
    "forced",  # by configuration or test
]


# No factor of a worker's is below it; see WorkerView.
LEAST_FACTOR = 0.25


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """One live worker as the state store last saw it. A windowed mean is None when its window holds no sample.

    KV sizes are tokens: `kv_free` counts the blocks that can be allocated now (unreferenced prefix-cache blocks are free, pinned
    blocks are not), so the room for a new session is `kv_free - kv_promised`. `kv_pinned` is part of what is in use.
    Each cost function is multiplied by the worker's own factor of it; T_kv by the reader's.
    """

    id: int
    role: Role
    epoch: str
    theta: int
    ttft_s: float | None = None
    itl_s: float | None = None
    queued_s: float = 0.0  # estimated seconds of prefill work waiting or running
    queued_tasks: int = 0
    running: int = 0
    kv_total: int = 0
    kv_free: int = 0
    kv_pinned: int = 0
    kv_promised: int = 0  # promised to sessions bound too recently for the worker's report to show them
    draining: bool = False
    context: int = 0  # tokens of KV that the running batch attends to
    link_s: float = 0.0  # estimated seconds of KV transfers that this worker's link still owes
    kv_written: int = 0  # tokens of KV written into the prefix cache since the worker's start: the clock by which it forgets
    t_pre_factor: float = 1.0  # measured seconds over the cost model's, as far as the worker has seen; 0.25 to 4
    t_dec_factor: float = 1.0
    t_mixed_factor: float = 1.0
    t_kv_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All live workers at one instant."""

    prefill: Sequence[WorkerView] = ()
    decode: Sequence[WorkerView] = ()

    def find(self, worker: int) -> WorkerView | None:
        """The worker of that id, or None when it is not (or no longer) live."""
        for view in (*self.decode, *self.prefill):
            if view.id == worker:
                return view
        return None


class Round(msgspec.Struct, frozen=True):
    """One prefill to place. `decode` is the bound decode worker's id.

    `held` says how many leading tokens of the prompt each prefill worker's own prefix cache is believed to hold: what its last
    answer left there and its `kv_written` has not pushed out since. Higher `priority` is more urgent; 0 is usual.
    """

    session: str
    number: int
    decode: int
    l_hist: int
    l_incr: int
    ttft_target_s: float
    itl_target_s: float
    held: Mapping[int, int] = msgspec.field(default_factory=dict)
    priority: int = 0


class Decision(msgspec.Struct, frozen=True):
    """Where a prefill runs, and why.

    `estimates` are seconds by candidate: "local", "remote:<worker>". It may be computed when first read.
    """

    path: Path
    worker: int
    reason: Reason
    estimate_s: float  # T_pre of this round on the chosen worker: what the queue will charge
    estimates: Mapping[str, float] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrefillTask:
    """One waiting prefill as the reordering sees it."""

    id: str
    arrived_at: float  # when the round arrived at the Coordinator, on the caller's clock
    cost_s: float  # estimated service time
    ttft_target_s: float
    postponed: int = 0
    priority: int = 0


class CostModel(Protocol):
    """The three cost functions of the paper's section on the performance model; seconds."""

    def t_pre(self, l_hist: int, l_incr: int, theta: int) -> float:
        """Prefill of `l_incr` tokens after `l_hist` cached ones."""

    def t_dec(self, batch: int, context: int, theta: int) -> float:
        """One decode step of `batch` sequences with `context` tokens of KV in all; linear in `context`, rising in `batch`."""

    def t_mixed(self, batch: int, context: int, chunk: int, theta: int) -> float:
        """One decode step of `batch` sequences with `context` tokens of KV in all that also prefills `chunk` tokens."""

    def t_kv(self, tokens: int, theta_src: int, theta_dst: int, direction: Direction) -> float:
        """Moving `tokens` of KV between two workers."""
