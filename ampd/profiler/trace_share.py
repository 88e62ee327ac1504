"""What moving KV costs beside computing it, over the incremental prefills of recorded sessions.

The paper (appendix B) shows the distribution of T_kv / T_pre of its own traces; here it is for one's own engine and traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ampd.bench.lengths import LengthSession
from ampd.cost_model import PiecewiseCostModel, Profile
from ampd.errors import ConfigError, ProfileError

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class KvShare:
    """Seconds of every incremental round for one theta on both sides, shape (rounds,); `outside` rounds were extrapolated."""

    theta: int
    history_s: Floats  # T_kv of the history, decode worker to prefill worker
    increment_s: Floats  # T_kv of the increment, back
    prefill_s: Floats  # T_pre of the round
    outside: int

    @property
    def ratio(self) -> Floats:
        """T_kv / T_pre of both directions together, as in Equation 2."""
        share: Floats = (self.history_s + self.increment_s) / self.prefill_s
        return share

    def as_json(self) -> dict[str, Any]:
        """The distribution as a row."""
        median, p95 = np.quantile(self.ratio, (0.5, 0.95))
        return {
            "theta": self.theta, "rounds": len(self.ratio), "kv_over_pre_median": float(median), "kv_over_pre_p95": float(p95),
            "rounds_outside_measured_range": self.outside,
        }  # fmt: skip


def kv_shares(profile: Profile, sessions: Sequence[LengthSession]) -> list[KvShare]:
    """The share for every theta that has T_pre and T_kv both ways.

    Raises ProfileError when there is none, ConfigError when no session has an incremental round.
    """
    rounds = [(r.history, r.prompt - r.history) for s in sessions for r in s.rounds[1:] if 0 < r.history < r.prompt]
    if not rounds:
        raise ConfigError("the trace has no incremental round: none shares a history with the round before and adds to it")
    cost = profile.cost_model()
    thetas = [f.theta for f in profile.t_pre]
    ways = {(f.theta_src, f.theta_dst, f.direction) for f in profile.t_kv}
    both = [t for t in thetas if {(t, t, "history"), (t, t, "increment")} <= ways]
    if not both:
        raise ProfileError(f"the profile has no T_kv both ways for any theta of its T_pre ({thetas}), so there is no share to show")
    return [_share(cost, theta, rounds) for theta in both]


def _share(cost: PiecewiseCostModel, theta: int, rounds: Sequence[tuple[int, int]]) -> KvShare:
    inside = [
        cost.knows_t_pre(hist, incr, theta)
        and cost.knows_t_kv(hist, theta, theta, "history")
        and cost.knows_t_kv(incr, theta, theta, "increment")
        for hist, incr in rounds
    ]
    return KvShare(
        theta,
        np.array([cost.t_kv(hist, theta, theta, "history") for hist, _ in rounds]),
        np.array([cost.t_kv(incr, theta, theta, "increment") for _, incr in rounds]),
        np.array([cost.t_pre(hist, incr, theta) for hist, incr in rounds]),
        inside.count(False),
    )
