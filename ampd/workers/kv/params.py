"""The transfer parameters that travel with a job into the engine and come back with its result.

They are vLLM's own `kv_transfer_params`, with keys added by ampd. Nothing here imports vLLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ampd.workers.engines.base import EngineJob, KvFacts

PIN = "ampd_pin"  # bool: keep the KV at the end
RELEASE = "ampd_release"  # list[str]: pins to drop once the job holds its own blocks, or ends without
ITL_TARGET = "ampd_itl_s"  # float: of a decode job, seconds; absent: the graph's
FACTS = "ampd_facts"  # KvFacts as a dict, on the way back

# In the connector's part of vLLM's statistics: the fields that EngineLoad has beyond vLLM's own.
LOAD = "ampd_load"

# What vLLM's connector needs to find the other side's pin, and to read it.
_ADDRESS = ("remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size")
_CONTENT = ("remote_block_ids", "remote_num_tokens")


def outgoing(job: EngineJob, block_size: int) -> dict[str, Any]:
    """The `kv_transfer_params` of a job. Whether it has a source to read is for `readable` to say first."""
    prefill = job.kind == "prefill"
    params: dict[str, Any] = {}
    if job.source is not None:
        params = trimmed(job.source, job.source_tokens, block_size) if prefill else dict(job.source)
        params.pop(FACTS, None)
    # In vLLM's words a prefill worker's request is one whose *decode* is remote, and the other way round.
    params["do_remote_decode"] = prefill
    params["do_remote_prefill"] = not prefill and job.source is not None
    params[PIN] = job.pin
    params[RELEASE] = list(job.release)
    if job.itl_target_s is not None:
        params[ITL_TARGET] = job.itl_target_s
    return params


def readable(job: EngineJob, block_size: int) -> bool:
    """Whether the job's source is complete and fits its prompt.

    A decode job reads a whole prompt or nothing: vLLM aligns the two block lists at their ends.
    """
    source = job.source
    if source is None or any(source.get(key) is None for key in (*_ADDRESS, *_CONTENT)):
        return False
    tokens, blocks = source["remote_num_tokens"], source["remote_block_ids"]
    if not blocks or any(len(group) * block_size < tokens for group in blocks):
        return False
    return bool(tokens == len(job.token_ids)) if job.kind == "decode" else True


def unread(source: Mapping[str, Any]) -> dict[str, Any] | None:
    """The `kv_transfer_params` that only end a pin; None when the source does not say where that is."""
    if any(source.get(key) is None for key in _ADDRESS):
        return None
    nothing = {"remote_block_ids": [[]], "remote_num_tokens": 0, "do_remote_decode": True, "do_remote_prefill": False, PIN: False}
    return {**source, **nothing}


def reads_history(params: Mapping[str, Any] | None) -> bool:
    """Whether a prefill's source has not been dealt with yet: neither read nor notified."""
    params = params or {}
    return bool(params.get("do_remote_decode") and params.get("remote_block_ids") and not params.get("_remote_blocks_processed"))


def trimmed(source: Mapping[str, Any], tokens: int, block_size: int) -> dict[str, Any]:
    """The part of a pin that covers the leading `tokens` tokens, in whole blocks; the reader still ends the whole pin.

    With several KV cache groups (sliding windows, state layers) a leading part is not what their blocks hold, so nothing
    of such a pin is read unless all of it is.
    """
    held: int = source["remote_num_tokens"]
    if tokens >= held:
        return dict(source)
    groups = source["remote_block_ids"]
    blocks = tokens // block_size if len(groups) == 1 else 0
    return {**source, "remote_block_ids": [list(group[:blocks]) for group in groups], "remote_num_tokens": blocks * block_size}


def facts_of(params: Mapping[str, Any] | None) -> KvFacts:
    """What the connector reported with a job's result."""
    return KvFacts(**((params or {}).get(FACTS) or {}))


def reused_tokens(source: Mapping[str, Any] | None) -> int | None:
    """Prompt tokens that the writer of a pin did not have to compute; None without a source."""
    if source is None:
        return None
    facts = facts_of(source)
    return facts.cached_tokens + facts.read_tokens


def facts_dict(facts: KvFacts) -> dict[str, Any]:
    """The wire form of `facts_of`."""
    return asdict(facts)
