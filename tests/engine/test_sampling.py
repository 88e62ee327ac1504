"""Dynamo's preprocessed request becomes vLLM's SamplingParams, and vLLM's outputs Dynamo's. No engine runs here."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

from ampd.errors import RequestError, WorkerError
from ampd.workers.engines.base import EngineJob
from ampd.workers.engines.outputs import OutputMapper, final_output, finish_reason
from ampd.workers.engines.sampling import reasoning, sampling_params


def params(
    request: dict[str, Any], kind: Any = "decode", defaults: dict[str, Any] | None = None, length: int = 10
) -> SamplingParams:
    job = EngineJob(id="x", kind=kind, token_ids=[5] * length, request=request)
    return sampling_params(job, defaults or {}, 100, {"ampd_pin": True})


def test_every_job_streams_token_deltas_with_its_transfer_parameters() -> None:
    got = params({})
    assert got.output_kind == RequestOutputKind.DELTA
    assert not got.detokenize
    assert got.extra_args == {"kv_transfer_params": {"ampd_pin": True}}


def test_a_prefill_samples_one_token_whatever_the_request_says() -> None:
    got = params({"stop_conditions": {"max_tokens": 50}, "sampling_options": {"n": 4}}, kind="prefill")
    assert (got.max_tokens, got.n, got.temperature) == (1, 1, 0.0)


def test_sampling_options_reach_their_fields() -> None:
    options = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "n": 2,
        "seed": 3,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "logit_bias": {7: -5.0},
    }
    got = params({"sampling_options": {**options, "best_of": None, "beam_width": 4}})
    assert {name: getattr(got, name) for name in options} == options


def test_extra_sampling_options_override() -> None:
    got = params(
        {"sampling_options": {"top_k": 1}, "extra_args": {"sampling_options": {"top_k": 9, "bad_words_token_ids": [[1, 2]]}}}
    )
    assert got.top_k == 9
    assert got._bad_words_token_ids == [[1, 2]]


def test_stop_conditions_reach_their_fields() -> None:
    got = params(
        {
            "stop_conditions": {
                "max_tokens": 20,
                "min_tokens": 3,
                "ignore_eos": True,
                "stop": ["END"],
                "stop_token_ids": [9],
                "stop_token_ids_hidden": [4, 9],
                "max_thinking_tokens": 11,
            }
        }
    )
    assert (got.max_tokens, got.min_tokens, got.ignore_eos, got.thinking_token_budget) == (20, 3, True, 11)
    assert got.stop_token_ids == [4, 9]
    assert got.stop == [], "the frontend has the text and stops at strings"


@pytest.mark.parametrize(("length", "defaults", "expected"), [(10, {}, 90), (10, {"max_tokens": 30}, 30), (99, {}, 1)])
def test_without_max_tokens_the_context_is_the_limit(length: int, defaults: dict[str, Any], expected: int) -> None:
    assert params({}, defaults=defaults, length=length).max_tokens == expected


def test_model_defaults_apply_under_the_request() -> None:
    got = params({"sampling_options": {"top_p": 0.5}}, defaults={"temperature": 0.6, "top_p": 0.95})
    assert (got.temperature, got.top_p) == (0.6, 0.5)


def test_logprob_options() -> None:
    got = params({"output_options": {"logprobs": 3, "prompt_logprobs": 2**32 - 1}})
    assert (got.logprobs, got.prompt_logprobs, got.skip_reading_prefix_cache) == (3, -1, True)
    kept = params({"output_options": {"prompt_logprobs": 0}, "sampling_options": {"skip_reading_prefix_cache": False}})
    assert (kept.prompt_logprobs, kept.skip_reading_prefix_cache) == (0, False)
    ids = params({"output_options": {"logprobs": 3}, "sampling_options": {"logprob_token_ids": [1, 2]}})
    assert ids.logprobs is None


@pytest.mark.parametrize(
    "guide", [{"regex": "a+"}, {"choice": ["a", "b"]}, {"grammar": 'root ::= "a"'}, {"json": {"type": "object"}}]
)
def test_guided_decoding(guide: dict[str, Any]) -> None:
    got = params({"sampling_options": {"guided_decoding": {"json": None, **guide}}})
    assert got.structured_outputs is not None
    name, value = next(iter(guide.items()))
    assert getattr(got.structured_outputs, name) == value


def test_a_structural_tag_travels_as_json() -> None:
    got = params({"sampling_options": {"guided_decoding": {"structural_tag": {"type": "structural_tag", "structures": []}}}})
    assert got.structured_outputs is not None
    assert got.structured_outputs.structural_tag == '{"type": "structural_tag", "structures": []}'


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"stop_conditions": {"max_tokens": 0}}, "max_tokens"),
        ({"stop_conditions": {"max_tokens": 4, "min_tokens": 5}}, "min_tokens"),
        ({"sampling_options": {"presence_penalty": 9}}, "presence_penalty"),
        ({"output_options": {"logprobs": -2}}, "logprobs = -2"),
        ({"sampling_options": {"guided_decoding": {"regex": "a", "choice": ["b"]}}}, "structured|one kind|only"),
    ],
)
def test_what_vllm_refuses_is_a_request_error(request_: dict[str, Any], text: str) -> None:
    with pytest.raises(RequestError, match=text):
        params(request_)


def _result(*choices: CompletionOutput, finished: bool = False, cached: int | None = 3, **more: Any) -> RequestOutput:
    return RequestOutput(
        "x", None, [5] * 10, more.pop("prompt_logprobs", None), list(choices), finished, num_cached_tokens=cached, **more
    )


def _choice(*tokens: int, index: int = 0, finish: str | None = None, **more: Any) -> CompletionOutput:
    return CompletionOutput(index, "", list(tokens), None, more.pop("logprobs", None), finish_reason=finish, **more)


def test_outputs_carry_usage_when_it_is_new_and_at_the_end() -> None:
    mapper = OutputMapper(str)
    pieces = [
        *mapper.map(_result(_choice(1))),
        *mapper.map(_result(_choice(2))),
        *mapper.map(_result(_choice(3, finish="stop", stop_reason=3), finished=True)),
    ]
    assert ["completion_usage" in piece.output for piece in pieces] == [True, False, True]
    assert pieces[-1].output == {
        "index": 0,
        "token_ids": [3],
        "finish_reason": "stop",
        "stop_reason": 3,
        "completion_usage": {
            "prompt_tokens": 10,
            "completion_tokens": 3,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 3},
        },
    }


def test_the_prefill_workers_count_of_cached_tokens_wins() -> None:
    (piece,) = OutputMapper(str, reused_tokens=0).map(_result(_choice(1), cached=9))
    assert piece.output["completion_usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_choices_of_one_request_are_separate_pieces_and_empty_ones_are_none() -> None:
    pieces = OutputMapper(str).map(_result(_choice(1, 2, index=1), _choice(index=0), _choice(3, index=2)))
    assert [(p.output["index"], p.output["token_ids"], p.tokens) for p in pieces] == [(1, [1, 2], 2), (2, [3], 1)]


def test_logprobs_name_the_tokens_and_stay_finite() -> None:
    logprobs = [{7: Logprob(-0.5, 1, "é"), 8: Logprob(-math.inf, 2, None)}]
    (piece,) = OutputMapper(lambda token: f"<{token}>").map(_result(_choice(7, logprobs=logprobs)))
    assert piece.output["log_probs"] == [-0.5]
    assert piece.output["top_logprobs"] == [
        [
            {"rank": 1, "token_id": 7, "token": "é", "logprob": -0.5, "bytes": [0xC3, 0xA9]},
            {"rank": 2, "token_id": 8, "token": "<8>", "logprob": -1e30, "bytes": list(b"<8>")},
        ]
    ]


def test_prompt_logprobs_wait_for_the_end() -> None:
    mapper = OutputMapper(str)
    (first,) = mapper.map(_result(_choice(1), prompt_logprobs=[None, {4: Logprob(-1.0, 2, "d")}]))
    (last,) = mapper.map(_result(_choice(2, finish="length"), finished=True))
    assert "engine_data" not in first.output
    assert last.output["engine_data"] == {"prompt_logprobs": [None, {"4": {"logprob": -1.0, "rank": 2, "decoded_token": "d"}}]}


def test_a_pin_is_described_by_the_last_piece() -> None:
    params_ = {"remote_request_id": "r", "remote_num_tokens": 12, "ampd_facts": {"read_tokens": 4}}
    result = _result(_choice(2, finish="length"), finished=True, kv_transfer_params=params_)
    last = final_output(EngineJob(id="x", kind="decode", token_ids=[5]), result, OutputMapper(str).map(result), 60.0)
    assert (last.finished, last.ref, last.params, last.pinned_tokens) == (True, "r", params_, 12)
    assert last.kv is not None
    assert last.kv.read_tokens == 4
    assert 0 < last.expires_at - time.time() <= 60


def test_an_aborted_job_ends_without_a_pin() -> None:
    last = final_output(EngineJob(id="x", kind="decode", token_ids=[5]), _result(finished=True), [], 60.0)
    assert (last.finished, last.ref, last.kv, last.output["finish_reason"]) == (True, None, None, "cancelled")


@pytest.mark.parametrize(("options", "error"), [({}, WorkerError), ({"guided_decoding": {"json": "{}"}}, RequestError)])
def test_a_job_that_the_engine_gave_up_is_an_error(options: dict[str, Any], error: type[Exception]) -> None:
    result = _result(_choice(finish="error"), finished=True)
    job = EngineJob(id="x", kind="decode", token_ids=[5], request={"sampling_options": options})
    with pytest.raises(error):
        final_output(job, result, OutputMapper(str).map(result), 60.0)


def test_reasoning_is_found_in_the_request_or_its_extras() -> None:
    assert reasoning({}) == (None, None)
    assert reasoning({"reasoning_ended": False, "extra_args": {"reasoning_ended": True, "reasoning_parser_kwargs": {"a": 1}}}) == (
        False,
        {"a": 1},
    )


def test_finish_reasons_in_dynamos_words() -> None:
    assert [finish_reason(reason) for reason in ("stop", "length", "abort", "error")] == ["stop", "length", "cancelled", "error"]
