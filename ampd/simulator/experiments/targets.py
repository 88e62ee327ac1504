"""TTFT and ITL targets by a rule, since the paper does not state its own: multiples of what an unloaded deployment does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from ampd.errors import ConfigError
from ampd.policy.types import CostModel
from ampd.simulator.types import TraceSession

Level = Literal["tight", "middle", "loose"]
LEVELS: tuple[Level, ...] = get_args(Level)

UNLOADED_SHARE = 0.9  # of the rounds have at most the unloaded TTFT that is multiplied
BATCH = 8
# (of the unloaded TTFT, of the batch-8 ITL).
MULTIPLES: dict[Level, tuple[float, float]] = {"tight": (2.5, 2.0), "middle": (5.0, 3.0), "loose": (10.0, 5.0)}


@dataclass(frozen=True, slots=True)
class Targets:
    """Seconds, and where they come from: the tensor-parallel degree, the unloaded TTFT and the batch-8 ITL there."""

    ttft_s: float
    itl_s: float
    level: Level
    theta: int
    unloaded_ttft_s: float
    batch_itl_s: float


def derive_targets(sessions: Sequence[TraceSession], cost: CostModel, thetas: Sequence[int], level: Level = "middle") -> Targets:
    """A round's targets for a load on a model and a GPU; the same for every deployment and policy.

    Both are measured on the largest feasible tensor-parallel degree, the fastest worker that the GPUs can form:

    - TTFT target: `tight` 2.5, `middle` 5, `loose` 10 times the 90th percentile over the trace's rounds of the unloaded TTFT,
      T_pre(history, increment) on an idle worker that holds the history. The 90th percentile, since goodput asks for 90 % of the
      rounds: at a multiple of 1 an idle machine of such workers just attains it.
    - ITL target: `tight` 2, `middle` 3, `loose` 5 times T_dec of 8 sequences of the trace's mean context (a token's, over all
      answers). Below 2, no batch that is worth having fits, nor does any smaller degree.

    `loose` is what Mooncake (arXiv 2407.00079) asks for, 10 times the unloaded TTFT and 5 times the unloaded time between tokens;
    each step down halves the TTFT. The paper's own targets are not known.

    Raises ConfigError for no sessions, no thetas or an unknown level.
    """
    if level not in MULTIPLES:
        raise ConfigError(f"targets: '{level}' is unknown; choose {', '.join(LEVELS)}")
    if not sessions or not thetas:
        raise ConfigError(f"targets: {'no sessions' if thetas else 'no feasible tensor-parallel degree'} to derive them from")
    theta = max(thetas)
    rounds = [r for session in sessions for r in session.rounds]
    ttft = float(np.quantile([cost.t_pre(r.history, r.prompt - r.history, theta) for r in rounds], UNLOADED_SHARE))
    tokens = sum(r.output for r in rounds)
    context = sum(r.output * (r.prompt + r.output / 2) for r in rounds) / tokens
    itl = cost.t_dec(BATCH, round(BATCH * context), theta)
    of_ttft, of_itl = MULTIPLES[level]
    return Targets(of_ttft * ttft, of_itl * itl, level, theta, ttft, itl)
