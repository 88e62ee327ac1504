"""What a round asks for: Dynamo's preprocessed request, checked and read once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampd.config import Targets
from ampd.coordinator.targets import find_target
from ampd.errors import RequestError

# Output promised to a round that names no bound of its own, when room is counted for a new session; tokens.
_USUAL_OUTPUT = 256


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. Sizes in tokens.

    `raw` is the preprocessed request as the frontend sent it, for the decode worker; only the token ids are taken out, since
    they travel beside it. `output_room` is the output
    that binding makes room for. `local_only`: the engine can only serve it where it decodes. `priority`: higher is more urgent.
    `trigger` is Dynamo's guess of what led to the request, "user_message" or "tool_result".
    """

    raw: dict[str, Any]
    token_ids: list[int]
    choices: int
    output_room: int
    local_only: bool
    final: bool
    cache_salt: str | None
    wants_data: bool
    ttft_target_s: float
    itl_target_s: float
    priority: int
    trigger: str | None

    @property
    def room(self) -> int:
        """Tokens of KV the round may come to need."""
        return len(self.token_ids) + self.choices * self.output_room


def read_request(raw: Mapping[str, Any], max_model_len: int, targets: Targets, metadata: Mapping[str, str]) -> Ask:
    """Check a request against the model; `targets` are the graph's. Raises RequestError saying what to change."""
    token_ids = _token_ids(raw)
    stop = _section(raw, "stop_conditions")
    sampling = _section(raw, "sampling_options")
    routing = _section(raw, "routing")
    agent = _section(raw, "agent_context")
    annotations = raw.get("annotations") or ()
    room = max_model_len - len(token_ids)
    if room < 1:
        raise RequestError(
            f"the prompt has {len(token_ids)} tokens, but the model's context is {max_model_len} tokens with the answer: shorten it"
        )
    _check_output(stop, len(token_ids), max_model_len)
    expected = routing.get("expected_output_tokens") or stop.get("max_tokens") or _USUAL_OUTPUT
    choices = int(sampling.get("n") or 1)
    return Ask(
        raw={name: value for name, value in raw.items() if name != "token_ids"},
        token_ids=token_ids,
        choices=choices,
        output_room=min(int(expected), room),
        local_only=choices > 1 or _section(raw, "output_options").get("prompt_logprobs") is not None,
        final=bool(agent.get("session_final")),
        cache_salt=routing.get("cache_salt") or None,
        wants_data="engine_data" in _extra_fields(raw),
        ttft_target_s=find_target("ttft", metadata, annotations, targets.ttft_s),
        itl_target_s=find_target("tpot", metadata, annotations, targets.itl_s),
        priority=int(routing.get("priority") or 0),
        trigger=agent.get("input_trigger"),
    )


def _token_ids(raw: Mapping[str, Any]) -> list[int]:
    for field in ("prompt_embeds", "multi_modal_data"):
        if raw.get(field):
            raise RequestError(f"{field}: this model serves text prompts only")
    token_ids = raw.get("token_ids")
    if not isinstance(token_ids, Sequence) or not token_ids:
        raise RequestError("the prompt is empty: send at least one token")
    return token_ids if isinstance(token_ids, list) else list(token_ids)


def _check_output(stop: Mapping[str, Any], prompt: int, max_model_len: int) -> None:
    max_tokens, min_tokens = stop.get("max_tokens"), stop.get("min_tokens")
    if max_tokens is not None and not 1 <= max_tokens <= max_model_len - prompt:
        raise RequestError(
            f"max_tokens is {max_tokens}, but a prompt of {prompt} tokens leaves 1 to {max_model_len - prompt} "
            f"in the model's context of {max_model_len}: lower it or leave it out"
        )
    if min_tokens is not None and max_tokens is not None and min_tokens > max_tokens:
        raise RequestError(f"min_tokens is {min_tokens}, above max_tokens {max_tokens}")


def _extra_fields(raw: Mapping[str, Any]) -> Sequence[str]:
    nvext = _section(_section(raw, "extra_args"), "nvext")
    return nvext.get("extra_fields") or ()


def _section(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = raw.get(name)
    return value if isinstance(value, Mapping) else {}
