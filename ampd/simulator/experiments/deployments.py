"""The deployments that a number of GPUs allows for a profile, in the paper's form `P:<TP=2,DP=3> D:<TP=4,DP=2>`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampd.cost_model import Meta, Profile
from ampd.errors import ConfigError
from ampd.policy.types import Role
from ampd.simulator.types import Group, TraceSession

NODE = 8  # GPUs; a worker lives within a node
_SIDE = r"<TP=(\d+),DP=(\d+)>"
_FORM = re.compile(rf"(?:P:{_SIDE} )?D:{_SIDE}")


@dataclass(frozen=True, slots=True, order=True)
class Side:
    """The equal workers of a role: `replicas` (DP) of tensor-parallel degree `theta` (TP)."""

    theta: int
    replicas: int

    @property
    def gpus(self) -> int:
        return self.theta * self.replicas

    def __str__(self) -> str:
        return f"<TP={self.theta},DP={self.replicas}>"


@dataclass(frozen=True, slots=True)
class Deployment:
    """Prefill workers, if any, and decode workers."""

    prefill: Side | None
    decode: Side

    @property
    def gpus(self) -> int:
        return self.decode.gpus + (self.prefill.gpus if self.prefill else 0)

    def __str__(self) -> str:
        return f"P:{self.prefill} D:{self.decode}" if self.prefill else f"D:{self.decode}"

    def groups(self, capacity: Mapping[int, int], chunk: int = 512, max_running: int = 256) -> tuple[Group, ...]:
        """The simulator's groups. `capacity`: KV tokens of a worker by theta. Raises ConfigError for a theta without."""
        sides: list[tuple[Role, Side]] = [("decode", self.decode)]
        if self.prefill:
            sides.insert(0, ("prefill", self.prefill))
        for role, side in sides:
            if side.theta not in capacity:
                raise ConfigError(
                    f"deployment {self}: a {role} worker of TP={side.theta} does not hold the model by this profile; "
                    f"use TP of {', '.join(map(str, sorted(capacity)))}"
                )
        return tuple(Group(role, s.theta, s.replicas, capacity[s.theta], chunk, max_running) for role, s in sides)


def parse_deployment(text: str) -> Deployment:
    """Read the paper's form. Raises ConfigError."""
    found = _FORM.fullmatch(text.strip())
    numbers = [int(n) for n in found.groups() if n is not None] if found else []
    if not found or 0 in numbers:
        raise ConfigError(f"deployment: {text!r} is not of the form 'P:<TP=2,DP=3> D:<TP=4,DP=2>' or 'D:<TP=4,DP=2>'")
    *before, theta, replicas = numbers
    return Deployment(Side(*before) if before else None, Side(theta, replicas))


def kv_capacity(meta: Meta) -> dict[int, int]:
    """KV tokens of a worker by theta: what its GPUs' memory leaves beside the weights, as the profile states it.

    The shipped estimates state 90 % of the memory less weights and buffers (ampd.profiler.silicon.models.Shape.kv_capacity), and
    leave out a theta whose memory does not even hold the weights.
    """
    return {int(theta): tokens for theta, tokens in meta.kv_capacity_by_theta.items()}


def feasible_thetas(profile: Profile, longest: int, gpus: int = NODE) -> dict[int, int]:
    """KV tokens by theta, of those degrees that the profile knows, that fit a node, and whose pool holds the `longest` context."""
    known = kv_capacity(profile.meta) or {min(profile.thetas): profile.meta.kv_capacity_tokens}
    most = min(gpus, NODE)
    return {t: known[t] for t in profile.thetas if t in known and t <= most and NODE % t == 0 and known[t] >= longest}


def longest_context(sessions: Sequence[TraceSession]) -> int:
    """Tokens of the longest prompt with its answer."""
    return max(r.prompt + r.output for session in sessions for r in session.rounds)


def enumerate_deployments(thetas: Sequence[int], gpus: int) -> list[Deployment]:
    """All with one theta a role that use as many of the GPUs as can be used, those without prefill workers first.

    Degrees divide a node of 8, so any of these can be packed into nodes. Raises ConfigError when no worker fits.
    """
    found = [Deployment(None, Side(t, gpus // t)) for t in sorted(thetas) if t <= gpus]
    for given in range(1, gpus):
        sides = [
            Deployment(Side(p, given // p), Side(d, (gpus - given) // d))
            for p in sorted(thetas)
            for d in sorted(thetas)
            if given % p == 0 and gpus - given >= d
        ]
        found += sides
    if not found:
        least = f"the least TP is {min(thetas)}" if thetas else "no TP within a node holds the model and the longest context"
        raise ConfigError(f"gpus: {gpus} cannot hold the model: {least}; give more GPUs, or a smaller model")
    most = max(d.gpus for d in found)
    return [d for d in found if d.gpus == most]


def neighbours(deployment: Deployment, every: Sequence[Deployment]) -> list[Deployment]:
    """Of `every`: the next splits with the same degrees, and the same split with one degree next to its own."""
    given = _given(deployment)
    splits = sorted((d for d in every if d != deployment and _thetas(d) == _thetas(deployment)), key=_given)
    more, fewer = [d for d in splits if _given(d) > given][:1], [d for d in splits if _given(d) < given][-1:]
    same = [d for d in every if _given(d) == given]
    degrees = [d for d in same if _apart(deployment.prefill, d.prefill) + _apart(deployment.decode, d.decode) == 1]
    return [*fewer, *more, *degrees]


def _given(deployment: Deployment) -> int:
    """GPUs of the prefill workers."""
    return deployment.prefill.gpus if deployment.prefill else 0


def _thetas(deployment: Deployment) -> tuple[int, int]:
    return (deployment.prefill.theta if deployment.prefill else 0), deployment.decode.theta


def _apart(a: Side | None, b: Side | None) -> int:
    """Doublings between the degrees."""
    return abs(a.theta.bit_length() - b.theta.bit_length()) if a and b else 0
