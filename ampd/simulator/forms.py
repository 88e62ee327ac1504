"""The systems that are compared, as setups: ampd, its policies' peers on ampd's workers, Dynamo in three forms, colocated engines.

| form | prefills | history on a prefill worker | KV between rounds | source |
|---|---|---|---|---|
| `ampd` | by the policy given, or `predictive` | read from the decode worker | pinned | |
| `paper` | Algorithm 1; local ones pause the batch | read | pinned | paper.md, section 1.3 |
| `dynamo`, `conditional_disagg`, `ppd`, `prefix_decider`, `local_only` | the peer's rule, first come first served, in chunks | read | pinned | ampd/policy/baselines.py |
| `dynamo_recompute` | remote | all computed again | cached | Dynamo's disaggregated serving without the KV router |
| `dynamo_cache` | remote, where least is to do with what the worker's cache holds | its own cache only | cached | Dynamo's KV router (docs/components/router) |
| `dynamo_read` | remote, as `dynamo_cache` | read | pinned | vllm-project/vllm#32553, bidirectional NIXL |
| `vllm` | colocated, vLLM's own token budget | | cached | vllm/v1/core/sched/scheduler.py |
| `continuum` | colocated, programs first come first served | | for a time to live, the paper's | arXiv 2511.02230 |
| `continuum_released` | the same | | 2.0 s or nothing | Hanchenli/vllm-continuum |

Peers have no reordering. A session stays with one decode worker in every form (session affinity), chosen by `policy.binding`.
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
    """The setup of a form on these workers. `policy` is what `ampd` runs; `batched_tokens` the step of a colocated engine.

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
            raise ConfigError(f"policy = {form!r}: its engines are colocated, but the deployment has prefill workers; make all decode")
        if form == "vllm":
            return replace(base, retention="cache", batched_tokens=batched_tokens)
        rule = "paper" if form == "continuum" else "released"
        return replace(base, retention="ttl", ttl_rule=rule, admission="program", batched_tokens=batched_tokens)
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
