"""Which fit answers for a theta, or for a way that KV takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ampd.cost_model.functions import TransferFit
from ampd.errors import ProfileError
from ampd.policy.types import Direction

Way = tuple[int, int, Direction, str | None]  # (theta_src, theta_dst, direction, transport)


def by_way(transfer: Iterable[TransferFit], transport: str | None) -> dict[Way, TransferFit]:
    """Fits by way. Those of `transport`, or else the first, are also found under the transport None."""
    fits: dict[Way, TransferFit] = {}
    for fit in transfer:
        way = fit.theta_src, fit.theta_dst, fit.direction
        fits[*way, fit.transport] = fit
        if (*way, None) not in fits or fit.transport == transport:
            fits[*way, None] = fit
    return fits


def nearest_theta(name: str, theta: int, fits: Mapping[int, object], *, allowed: bool) -> int:
    """The theta of the fit that answers for one without. Raises ProfileError unless that is allowed and there is any."""
    if not (allowed and fits):
        raise ProfileError(f"the profile has no {name} for theta {theta}, only for {sorted(fits)}; profile it too")
    return min(fits, key=lambda known: abs(known - theta))


def nearest_way(way: Way, fits: Mapping[Way, object], *, allowed: bool) -> Way:
    """As `nearest_theta`; direction and transport must be the same."""
    src, dst, direction, transport = way
    near = [known for known in fits if known[2:] == (direction, transport)]
    if not (allowed and near):
        known = ", ".join(f"{s}->{d} {to}{f' by {by}' if by else ''}" for s, d, to, by in fits) or "none"
        by = f" by {transport}" if transport else ""
        raise ProfileError(f"the profile has no T_kv for theta {src}->{dst} {direction}{by}, only for {known}; profile it too")
    return min(near, key=lambda known: abs(known[0] - src) + abs(known[1] - dst))
