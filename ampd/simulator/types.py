"""What a simulation is given, and what it answers. Times in seconds of virtual time, sizes in tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ampd.config.schema import Policy
from ampd.policy.types import Role

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# How a round was served, as the column `path` of Records has it.
PATHS = ("local", "remote", "deflected")


@dataclass(frozen=True, slots=True)
class TraceRound:
    """One round. `history` leading tokens of the prompt are shared with the round before and its answer; `gap_s` lies between the
    end of the round before and this one's arrival.
    """

    prompt: int
    history: int
    output: int
    gap_s: float = 0.0
    tool: str = ""  # what ran in the gap, where the trace says; Continuum's time to live goes by it


@dataclass(frozen=True, slots=True)
class TraceSession:
    """A session and when it arrives."""

    name: str
    rounds: tuple[TraceRound, ...]
    arrives_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Group:
    """Equal workers. `kv_tokens`: one worker's KV pool; `chunk`: the most tokens of prefill in a decode worker's step."""

    role: Role
    theta: int
    replicas: int
    kv_tokens: int
    chunk: int = 512
    max_running: int = 256


@dataclass(frozen=True, slots=True)
class Delays:
    """What the control plane takes. `report_s`: how old what others know of a worker's batch, KV and windows may be; what left its
    queue is known after `changed_s`.

    `decide_s` from a round's arrival to its task being with its worker, `hop_s` each further message between processes (a prefill's
    answer to its decode leg). Medians of `benchmarks.coordinator` on a small machine.
    """

    decide_s: float = 0.001
    hop_s: float = 0.001
    report_s: float = 0.5
    changed_s: float = 0.05


@dataclass(frozen=True, slots=True)
class Setup:
    """A deployment and its rules.

    `prefill_history`: what a prefill worker uses of a session's history: "read" from the decode worker what its own cache lacks,
    only its own "cache", or "none" of it.
    `retention`: what a decode worker does with a session's KV between rounds: "pin" until the next round, `idle_ttl_s` or pressure;
    "cache": evictable at once, least recently used first; "ttl": pinned for a time to live by tool (Continuum), then as "cache".
    `ttl_rule`: the time to live of Continuum's "paper", or of its "released" code (see `ttl`).
    `admission`: which waiting job a decode worker admits next: by "arrival", or of the "program" that arrived first (Continuum).
    `local_slots`: prefills that have their turn at a decode worker at once; the live worker's one.
    `prefill_tokens` > 0: a prefill worker computes so many tokens in a step, of several prompts as vLLM does; 0: a prompt at a
    time, as the live worker.
    `batched_tokens` > 0: a colocated engine as vLLM runs it: prefills first within so many tokens of a step, not slack-bounded.
    """

    groups: tuple[Group, ...]
    ttft_s: float
    itl_s: float
    policy: Policy = field(default_factory=Policy)
    block_size: int = 32
    coordinators: int = 1
    delays: Delays = Delays()
    prefill_history: Literal["read", "cache", "none"] = "read"
    retention: Literal["pin", "cache", "ttl"] = "pin"
    ttl_rule: Literal["paper", "released"] = "paper"
    admission: Literal["arrival", "program"] = "arrival"
    local_slots: int = 1
    prefill_tokens: int = 0
    batched_tokens: int = 0
    idle_ttl_s: float = 300.0

    @property
    def gpus(self) -> int:
        """GPUs of all workers."""
        return sum(g.theta * g.replicas for g in self.groups)


@dataclass(frozen=True, slots=True)
class Records:
    """All rounds that have ended, one row each in order of their end; arrays of equal length.

    `itl_s` is a round's mean, `itl_p95_s` the 95th percentile of its token gaps; both NaN for a round of one token.
    `l_hist` is what was reused of the decode worker's KV, `held` what the prefill worker's own cache held; `worker` prefilled it.
    """

    session: Ints  # index into the sessions given
    number: Ints  # 1 for a session's first
    arrived_s: Floats
    ttft_s: Floats
    itl_s: Floats
    itl_p95_s: Floats
    ended_s: Floats
    prompt: Ints
    l_hist: Ints
    held: Ints
    output: Ints
    path: Ints  # index into PATHS
    worker: Ints
    decode: Ints
    queued_s: Floats  # from the task's arrival at its worker to its turn
    moved_s: Floats  # KV transfers of the round

    def __len__(self) -> int:
        return len(self.session)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Records, and what else happened. `unfinished`: rounds that had arrived and not ended when the simulation stopped, as
    (arrived_s, session index, number) each. `counts`: events, reasons ("reason:least_finish"), evictions, preemptions, shed pins.
    `busy_s`: seconds in which each worker computed.
    """

    records: Records
    unfinished: Sequence[tuple[float, int, int]]
    ended_s: float
    counts: Mapping[str, int]
    busy_s: Mapping[int, float]
