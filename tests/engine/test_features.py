"""Features of a request reach the engine, and its answers have the form that Dynamo's frontend reads."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from engine_pair import Pair, Result, prompt, request, run

from ampd.errors import RequestError

PROMPT = prompt(60, 130)


async def answer(pair: Pair, body: dict[str, Any], token_ids: list[int] | None = None) -> Result:
    return await run(pair.decode, kind="decode", token_ids=PROMPT if token_ids is None else token_ids, request=body, pin=False)


async def test_a_seed_repeats_its_answer(pair: Pair) -> None:
    def sampled(seed: int) -> dict[str, Any]:
        return request(12, sampling_options={"temperature": 1.0, "seed": seed})

    first, again, other = [(await answer(pair, sampled(seed))).tokens for seed in (1, 1, 2)]
    assert first == again
    assert first != other


async def test_stop_tokens_end_the_answer(pair: Pair) -> None:
    tokens = (await answer(pair, request(8))).tokens
    for field in ("stop_token_ids", "stop_token_ids_hidden"):
        stopped = await answer(pair, request(8, stop_conditions={"max_tokens": 8, field: [tokens[3]]}))
        assert stopped.tokens == tokens[: tokens.index(tokens[3]) + 1]
        assert stopped.last.output["finish_reason"] == "stop"
        assert stopped.last.output["stop_reason"] == tokens[3]


async def test_min_tokens_holds_a_stop_back(pair: Pair) -> None:
    tokens = (await answer(pair, request(8))).tokens
    stop = {"max_tokens": 8, "min_tokens": 6, "stop_token_ids": [tokens[1]]}
    assert len((await answer(pair, request(8, stop_conditions=stop))).tokens) >= 6


async def test_logprobs(pair: Pair) -> None:
    result = await answer(pair, request(4, output_options={"logprobs": 2}))
    outputs = [output.output for output in result.outputs]
    log_probs = [value for output in outputs for value in output["log_probs"]]
    tops = [position for output in outputs for position in output["top_logprobs"]]
    assert len(log_probs) == len(tops) == 4
    for token, log_prob, top in zip(result.tokens, log_probs, tops, strict=True):
        assert math.isfinite(log_prob)
        best = max(top, key=lambda entry: entry["logprob"])
        assert (best["token_id"], best["logprob"], best["rank"]) == (token, log_prob, 1)
        assert set(best) == {"rank", "token_id", "token", "logprob", "bytes"}
        assert len(top) == 2
    json.dumps(outputs)


async def test_prompt_logprobs_come_with_the_last_piece(pair: Pair) -> None:
    result = await answer(pair, request(2, output_options={"prompt_logprobs": 1}))
    scored = result.last.output["engine_data"]["prompt_logprobs"]
    assert len(scored) == len(PROMPT)
    assert scored[0] is None
    assert str(PROMPT[5]) in scored[5]
    json.dumps(result.last.output)


async def test_structured_output(pair: Pair) -> None:
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    body = request(40, sampling_options={"guided_decoding": {"json": schema}}, stop_conditions={"ignore_eos": False})
    result = await answer(pair, body)
    text = pair.decode._llm.tokenizer.decode(result.tokens, skip_special_tokens=True)
    assert isinstance(json.loads(text)["ok"], bool)
    assert result.last.output["finish_reason"] == "stop"


async def test_usage_is_in_the_first_and_the_last_piece(pair: Pair) -> None:
    result = await answer(pair, request(5))
    usages = [output.output.get("completion_usage") for output in result.outputs]
    assert usages[0] is not None
    assert usages[-1]["prompt_tokens"] == 60
    assert usages[-1]["completion_tokens"] == 5
    assert result.last.output["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("body", "token_ids", "text"),
    [
        (request(4), [], "empty"),
        (request(4), [5] * 9000, "longer than the maximum model length"),
        (request(4), [10**6], "vocabulary"),
        (request(0), None, "max_tokens"),
        (request(4, sampling_options={"temperature": -1.0}), None, "temperature"),
        (request(4, sampling_options={"top_p": 2.0}), None, "top_p"),
        (request(4, sampling_options={"n": 0}), None, "n must"),
        (request(4, output_options={"logprobs": 10**6}), None, "logprobs"),
        (request(4, output_options={"logprobs": "many"}), None, "many"),
        (request(4, sampling_options={"guided_decoding": {"json": "{not a schema"}}), None, "json|JSON|schema"),
        (request(4, sampling_options={"guided_decoding": {"regex": "a", "json": "{}"}}), None, "structured"),
        (request(4, sampling_options={"temperature": "warm"}), None, "warm|str|temperature"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else "",
)
async def test_bad_requests_are_refused_and_harm_nobody(
    pair: Pair, body: dict[str, Any], token_ids: list[int] | None, text: str
) -> None:
    with pytest.raises(RequestError, match=text):
        await answer(pair, body, token_ids)
    assert len((await answer(pair, request(2))).tokens) == 2


async def test_a_salt_keeps_prefix_caches_apart(pair: Pair) -> None:
    token_ids = prompt(128, 131)

    async def cached(salt: str) -> int:
        result = await run(pair.decode, kind="decode", token_ids=token_ids, request=request(1), pin=False, cache_salt=salt)
        assert result.last.kv is not None
        return result.last.kv.cached_tokens

    assert [await cached("a"), await cached("a"), await cached("b")] == [0, 96, 0]
