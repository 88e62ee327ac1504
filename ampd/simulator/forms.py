"""The systems that are compared, as setups: ampd, its policies' peers on ampd's workers, Dynamo in three forms, colocated engines.

On prefill and decode workers; a prefill worker reads the history from the decode worker, which pins it between rounds:

    ampd, predictive    the policy given, or `predictive`
    paper               Algorithm 1; a local prefill pauses the batch                             AMPD, section 4
    dynamo              all remote, where the least prefill waits                                 ampd/policy/baselines.py
    conditional_disagg, ppd, prefix_decider, local_only: the peers' rules; local prefills in vLLM's chunks
    dynamo_read         as `dynamo`                                                               vllm-project/vllm#32553

The same, but a prefill worker has the history only from its own cache, and decode workers keep theirs as vLLM's prefix cache does:

    dynamo_cache        where least is to do, what the worker's cache holds left out              Dynamo, docs/components/router
    dynamo_recompute    no such cache: all is computed again                                      Dynamo, disaggregated serving

Colocated engines, prefills in vLLM's token budget for a step:

    vllm                prefix cache, rounds first come first served                              vllm/v1/core/sched/scheduler.py
    continuum           KV kept for the paper's time to live, programs first come first served    arXiv 2511.02230
    continuum_released  KV kept for 2.0 s or not at all                                           Hanchenli/vllm-continuum

Peers run vLLM's engines as they are: no reordering, several prompts in a prefill worker's step, several chunks beside a decode
batch. ampd's workers compute a prompt at a time; `paper` too, whose queue dequeues one.
A session stays with one decode worker in every form (session affinity), chosen by `policy.binding`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ampd.config.schema import Policy, Reorder
from ampd.errors import ConfigError
from ampd.simulator.types import Delays, Group, Setup

# vLLM's default for an API server on GPUs of 70 GiB and more (vllm/engine/arg_utils.py, max_num_batched_tokens).
BATCHED_TOKENS = 8192

COLOCATED = ("vllm", "continuum", "continuum_released")
DYNAMO = ("dynamo_recompute", "dynamo_cache", "dynamo_read")
PEERS = ("dynamo", "conditional_disagg", "ppd", "prefix_decider", "local_only")
FORMS = ("ampd", "predictive", "paper", *PEERS, *DYNAMO, *COLOCATED)

_PLAIN = Reorder(name="fcfs")


def setup_for(
    form: str,
    groups: Sequence[Group],
    ttft_s: float,
    itl_s: float,
    *,
    policy: Policy | None = None,
    block_size: int = 32,
    coordinators: int = 1,
    delays: Delays | None = None,
    batched_tokens: int = BATCHED_TOKENS,
) -> Setup:
    """The setup of a form on these workers. `policy` is what `ampd` runs; `batched_tokens`: a step of vLLM where it prefills.

    Raises ConfigError for an unknown form, and for prefill workers given to a colocated one.
    """
    if form not in FORMS:
        raise ConfigError(f"policy = {form!r}: there is no such form; choose one of {', '.join(FORMS)}")
    base = Setup(
        groups=tuple(groups),
        ttft_s=ttft_s,
        itl_s=itl_s,
        policy=_policy(form, policy),
        block_size=block_size,
        coordinators=coordinators,
        delays=delays or Delays(),
    )
    if form in COLOCATED:
        if any(g.role == "prefill" for g in groups):
            raise ConfigError(
                f"policy = {form!r}: its engines are colocated, but the deployment has prefill workers; make all decode"
            )
        if form == "vllm":
            return replace(base, retention="cache", batched_tokens=batched_tokens)
        by_ttl = replace(base, retention="ttl", admission="program", batched_tokens=batched_tokens)
        return by_ttl if form == "continuum" else replace(by_ttl, ttl_rule="released")
    if form in (*DYNAMO, *PEERS):
        base = replace(base, prefill_tokens=batched_tokens, local_slots=max(g.max_running for g in groups))
    if form == "dynamo_recompute":
        return replace(base, prefill_history="none", retention="cache")
    if form == "dynamo_cache":
        return replace(base, prefill_history="cache", retention="cache")
    return base


def _policy(form: str, given: Policy | None) -> Policy:
    if form == "ampd":
        return given or Policy(name="predictive")
    if form == "predictive":
        return Policy(name="predictive")
    if form == "paper":
        return Policy(name="paper", local_prefill="exclusive")
    name = "dynamo" if form in DYNAMO else "local_only" if form in COLOCATED else form
    return Policy.model_validate({"name": name, "local_prefill": "chunked", "reorder": _PLAIN})
