"""The routing policies by name."""

from __future__ import annotations

from ampd.policy.baselines import ConditionalDisagg, Dynamo, LocalOnly, Ppd, PrefixDecider
from ampd.policy.placing import Chooser, Router
from ampd.policy.predictive import Predictive
from ampd.policy.routing import Paper
from ampd.policy.settings import PolicySettings


def make_policy(settings: PolicySettings, prefill_chunk: int = 512) -> Router:
    """The policy that `settings.name` asks for. `settings` is section `policy` of the configuration.

    `prefill_chunk` is the decode workers' own: with `local_prefill: chunked` a local prefill runs in steps of so many tokens.
    Raises ValueError on a name that no policy has.
    """
    return Router(_make(settings, prefill_chunk))


def _make(settings: PolicySettings, prefill_chunk: int) -> Chooser:
    match settings.name:
        case "paper":
            return Paper(settings.alpha, settings.beta)
        case "predictive":
            own = settings.predictive
            return Predictive(own.margin, own.near, own.deflect, settings.local_prefill, prefill_chunk)
        case "dynamo":
            return Dynamo()
        case "conditional_disagg":
            return ConditionalDisagg(settings.conditional_disagg)
        case "ppd":
            return Ppd(settings.ppd.bypass_threshold)
        case "prefix_decider":
            return PrefixDecider(settings.prefix_decider.non_cached_tokens, settings.prefix_decider.prompt_tokens)
        case "local_only":
            return LocalOnly()
        case name:
            raise ValueError(f"policy.name = {name!r} is no routing policy")
