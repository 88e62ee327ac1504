"""Every fitted function of a profile in one form, for what reads profiles: tables, plots, comparison, check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ampd.cost_model import PiecewiseCostModel, Points, Profile
from ampd.cost_model.functions import DecodeFit, FitError, MixedFit, PrefillFit, Segment, Span, TransferFit
from ampd.policy.types import Direction

Floats = NDArray[np.float64]
Key = tuple[str, str, Direction | None, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One function for one theta (of T_kv: two thetas, a direction and perhaps a transport): its fit and the points behind it.

    `spans` are the measured ranges by argument, in the order of the function's arguments; `along` names the argument that the
    pieces divide and `breaks` where. `args` has the shape (points, arguments), `seconds` (points,); both may be empty. Of T_mixed
    `args` has a last column more, the chunk's own history.
    """

    name: str
    theta: str  # "2", or "1->2" for T_kv
    spans: dict[str, Span]
    along: str
    breaks: tuple[int, ...]
    error: FitError
    predict: Callable[..., float]
    args: NDArray[np.int64] = field(repr=False)
    seconds: Floats = field(repr=False)
    direction: Direction | None = None
    transport: str | None = None
    sequence: Span | None = None  # measured range of context / batch

    @property
    def key(self) -> Key:
        """What names the same function in another profile."""
        return self.name, self.theta, self.direction, self.transport

    @property
    def title(self) -> str:
        """`T_pre`, `T_kv history`, `T_kv history by rdma`."""
        by = f"by {self.transport}" if self.transport else None
        return " ".join(part for part in (self.name, self.direction, by) if part)

    def predicted(self, args: Iterable[Sequence[int]]) -> Floats:
        """Seconds by the fit, shape (rows of args,)."""
        return np.array([self.predict(*map(int, row)) for row in args], dtype=np.float64)

    def residuals(self) -> Floats:
        """predicted / measured - 1 at the points, all of which the final fit has seen; shape (points,)."""
        return self.predicted(self.args) / self.seconds - 1


def curves(profile: Profile) -> list[Curve]:
    """All functions of a profile: T_pre, T_dec, T_mixed, T_kv, each by theta."""
    cost, points = profile.cost_model(), profile.points
    return [
        *(_prefill(fit, points, cost) for fit in profile.t_pre),
        *(_decode(fit, points, cost) for fit in profile.t_dec),
        *(_mixed(fit, points, cost) for fit in profile.t_mixed),
        *(_transfer(fit, points, cost) for fit in profile.t_kv),
    ]


def _prefill(fit: PrefillFit, points: Points, cost: PiecewiseCostModel) -> Curve:
    args, seconds = _columns([(p.l_hist, p.l_incr, p.seconds) for p in points.prefill if p.theta == fit.theta], 2)
    return Curve(
        name="T_pre", theta=str(fit.theta), spans={"l_hist": fit.l_hist, "l_incr": fit.l_incr}, along="l_incr",
        breaks=_breaks(fit.segments), error=fit.error, predict=_bind(cost.t_pre, fit.theta), args=args, seconds=seconds,
    )  # fmt: skip


def _decode(fit: DecodeFit, points: Points, cost: PiecewiseCostModel) -> Curve:
    args, seconds = _columns([(p.batch, p.context, p.seconds) for p in points.decode if p.theta == fit.theta], 2)
    return Curve(
        name="T_dec", theta=str(fit.theta), spans={"batch": fit.batch, "context": fit.context}, along="batch",
        breaks=_breaks(fit.segments), error=fit.error, predict=_bind(cost.t_dec, fit.theta), args=args, seconds=seconds,
        sequence=fit.sequence,
    )  # fmt: skip


def _mixed(fit: MixedFit, points: Points, cost: PiecewiseCostModel) -> Curve:
    own = [p for p in points.mixed if p.theta == fit.theta]
    args, seconds = _columns([(p.batch, p.context, p.chunk, p.l_hist, p.seconds) for p in own], 4)

    def predict(batch: int, context: int, chunk: int, l_hist: int = 0) -> float:
        attended = cost.t_pre(l_hist, chunk, fit.theta) - cost.t_pre(0, chunk, fit.theta) if l_hist else 0.0
        return cost.t_mixed(batch, context, chunk, fit.theta) + attended

    return Curve(
        name="T_mixed", theta=str(fit.theta), spans={"batch": fit.batch, "context": fit.context, "chunk": fit.chunk}, along="chunk",
        breaks=_breaks(fit.segments), error=fit.error, predict=predict, args=args, seconds=seconds, sequence=fit.sequence,
    )  # fmt: skip


def _transfer(fit: TransferFit, points: Points, cost: PiecewiseCostModel) -> Curve:
    way = fit.theta_src, fit.theta_dst, fit.direction, fit.transport
    own = [p for p in points.kv if (p.theta_src, p.theta_dst, p.direction, p.transport) == way]
    args, seconds = _columns([(p.tokens, p.seconds) for p in own], 1)
    return Curve(
        name="T_kv", theta=f"{fit.theta_src}->{fit.theta_dst}", spans={"tokens": fit.tokens}, along="tokens",
        breaks=_breaks(fit.segments), error=fit.error, predict=_bind(cost.t_kv, *way), args=args, seconds=seconds,
        direction=fit.direction, transport=fit.transport,
    )  # fmt: skip


def _bind(function: Callable[..., float], *last: Any) -> Callable[..., float]:
    return lambda *args: function(*args, *last)


def _breaks(segments: Sequence[Segment]) -> tuple[int, ...]:
    return tuple(s.up_to for s in segments if s.up_to is not None)


def _columns(rows: Sequence[Sequence[float]], arguments: int) -> tuple[NDArray[np.int64], Floats]:
    table = np.array(rows, dtype=np.float64).reshape(-1, arguments + 1)
    return table[:, :-1].astype(np.int64), table[:, -1]
