"""From Dynamo's preprocessed request to vLLM's SamplingParams, with the meaning that Dynamo's own vLLM worker gives it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vllm.exceptions import VLLMClientError
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

from ampd.errors import RequestError
from ampd.workers.engines.base import EngineJob

# Dynamo writes "all of the vocabulary" as the largest u32; vLLM as -1.
_WHOLE_VOCABULARY = 2**32 - 1
_GUIDES = ("json", "regex", "choice", "grammar", "whitespace_pattern")


def sampling_params(
    job: EngineJob, defaults: Mapping[str, Any], max_model_len: int, kv_params: Mapping[str, Any]
) -> SamplingParams:
    """How to sample a job. `defaults` come from the model's generation_config.json.

    Raises RequestError for values that vLLM refuses. Stop strings are not among them: Dynamo's frontend has the text and
    stops there, which reaches the engine as `Engine.finish`, or as an abort if the round leaves no KV.
    """
    try:
        params = _prefill_params() if job.kind == "prefill" else _decode_params(job, defaults, max_model_len)
        params.detokenize = False
        params.output_kind = RequestOutputKind.DELTA
        params.extra_args = {**(params.extra_args or {}), "kv_transfer_params": dict(kv_params)}
        params.__post_init__()  # setattr has gone past its checks
    except (VLLMClientError, ValueError, TypeError) as e:
        raise RequestError(" ".join(str(e).split())) from e
    return params


def reasoning(request: Mapping[str, Any]) -> tuple[bool | None, dict[str, Any] | None]:
    """What the frontend knows of reasoning in the prompt: whether it has ended, and the arguments of its parser."""
    extra = request.get("extra_args")
    sources = (request, extra if isinstance(extra, Mapping) else {})

    def first(name: str) -> Any:
        return next((source[name] for source in sources if source.get(name) is not None), None)

    return first("reasoning_ended"), first("reasoning_parser_kwargs")


def _prefill_params() -> SamplingParams:
    # The token is thrown away: the decode worker samples the first one, with the request's own parameters.
    return SamplingParams(temperature=0.0, max_tokens=1)


def _decode_params(job: EngineJob, defaults: Mapping[str, Any], max_model_len: int) -> SamplingParams:
    request = job.request
    params = SamplingParams(**defaults)
    options = _section(request, "sampling_options")
    guide = options.pop("guided_decoding", None)
    if guide:
        params.structured_outputs = _structured(guide)
    _assign(params, options)
    stop = _section(request, "stop_conditions")
    _assign_stop(params, stop)
    _assign_logprobs(params, _section(request, "output_options"), options)
    if stop.get("max_tokens") is None:
        room = max(1, max_model_len - len(job.token_ids))
        params.max_tokens = min(int(defaults.get("max_tokens", room)), room)
    return params


def _section(request: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = dict(request.get(name) or {})
    if name == "sampling_options":
        extra = request.get("extra_args") or {}
        section.update(extra.get(name) or {} if isinstance(extra, Mapping) else {})
    return section


def _assign(params: SamplingParams, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is None:
            continue
        if name == "bad_words_token_ids":
            params._bad_words_token_ids = value
        elif hasattr(params, name):
            setattr(params, name, value)


def _assign_stop(params: SamplingParams, stop: Mapping[str, Any]) -> None:
    _assign(params, {name: value for name, value in stop.items() if name != "stop"})
    if hidden := stop.get("stop_token_ids_hidden"):
        params.stop_token_ids = sorted({*(params.stop_token_ids or ()), *hidden})
    if (budget := stop.get("max_thinking_tokens")) is not None:
        params.thinking_token_budget = budget


def _assign_logprobs(params: SamplingParams, output: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    logprobs, prompt_logprobs = _count(output, "logprobs"), _count(output, "prompt_logprobs")
    if params.logprob_token_ids:
        params.logprobs = None  # the given ids replace the top-k
    elif logprobs is not None:
        params.logprobs = logprobs
    if prompt_logprobs is not None:
        params.prompt_logprobs = prompt_logprobs
        if options.get("skip_reading_prefix_cache") is None:
            params.skip_reading_prefix_cache = True


def _count(output: Mapping[str, Any], name: str) -> int | None:
    value = output.get(name)
    if value is None or value == "":
        return None
    count = int(value)
    if count < 0:
        raise ValueError(f"{name} = {value}: must not be negative")
    return -1 if count == _WHOLE_VOCABULARY else count


def _structured(guide: Mapping[str, Any]) -> StructuredOutputsParams:
    tag = guide.get("structural_tag")
    if tag is not None and not isinstance(tag, str):
        tag = json.dumps(tag)
    return StructuredOutputsParams(**{name: guide.get(name) for name in _GUIDES}, structural_tag=tag)
