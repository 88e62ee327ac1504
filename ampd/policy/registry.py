"""The routing policies by name."""

from __future__ import annotations

from ampd.policy.placing import Chooser, Router, RoutingPolicy
from ampd.policy.routing import Paper
from ampd.policy.settings import PolicySettings


def make_policy(settings: PolicySettings, prefill_chunk: int = 512) -> RoutingPolicy:
    """The policy that `settings.name` asks for. `settings` is section `policy` of the configuration.

    `prefill_chunk` is the decode workers' own: with `local_prefill: chunked` a local prefill runs in steps of so many tokens.
    Raises ValueError on a name that no policy has.
    """
    return Router(_make(settings, prefill_chunk))


def _make(settings: PolicySettings, prefill_chunk: int) -> Chooser:
    if settings.name == "paper":
        return Paper(settings.alpha, settings.beta)
    raise ValueError(f"policy.name = {settings.name!r} is no routing policy")
