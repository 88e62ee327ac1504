"""From vLLM's RequestOutput to Dynamo's engine-output form. Imports nothing of vLLM: it reads attributes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ampd.errors import RequestError, WorkerError
from ampd.workers.engines.base import EngineJob, EngineOutput
from ampd.workers.kv.params import facts_of

# JSON has no infinities; what vLLM gives for an impossible token.
_MIN_LOGPROB = -1e30

Decode = Callable[[int], str | None]


class OutputMapper:
    """One job's outputs. `reused_tokens` replaces the engine's own count of cached prompt tokens when the prompt came from a
    prefill worker: read KV counts as cached there, although it was computed for this very round.
    """

    def __init__(self, decode: Decode, reused_tokens: int | None = None) -> None:
        self._decode, self._reused = decode, reused_tokens
        self._generated = 0
        self._usage: dict[int, tuple[int, int | None]] = {}
        self._prompt_logprobs: list[dict[str, Any] | None] | None = None

    def map(self, result: Any) -> list[EngineOutput]:
        """The pieces of one RequestOutput (delta form), in order. None of them is marked finished."""
        if self._prompt_logprobs is None and result.prompt_logprobs is not None:
            self._prompt_logprobs = [self._prompt_position(entry) for entry in result.prompt_logprobs]
        return [
            EngineOutput(output=self._choice(result, choice), tokens=len(choice.token_ids))
            for choice in result.outputs
            if choice.token_ids or choice.finish_reason
        ]

    def _choice(self, result: Any, choice: Any) -> dict[str, Any]:
        index = choice.index or 0
        token_ids = list(choice.token_ids)
        self._generated += len(token_ids)
        out: dict[str, Any] = {"index": index, "token_ids": token_ids}
        if choice.logprobs:
            out["log_probs"], out["top_logprobs"] = self._logprobs(token_ids, choice.logprobs)
        prompt, cached = len(result.prompt_token_ids or ()), self._cached(result)
        if choice.finish_reason or self._usage.get(index) != (prompt, cached):
            self._usage[index] = (prompt, cached)
            out["completion_usage"] = _usage(prompt, self._generated, cached)
        if choice.finish_reason:
            out["finish_reason"] = finish_reason(choice.finish_reason)
            if self._prompt_logprobs is not None:
                out["engine_data"] = {"prompt_logprobs": self._prompt_logprobs}
        if choice.stop_reason is not None:
            out["stop_reason"] = choice.stop_reason
        return out

    def _cached(self, result: Any) -> int | None:
        return self._reused if self._reused is not None else result.num_cached_tokens

    def _logprobs(self, token_ids: list[int], positions: Any) -> tuple[list[float], list[list[dict[str, Any]]]]:
        chosen, top = [], []
        for token_id, candidates in zip(token_ids, positions, strict=False):
            chosen.append(_finite(candidates[token_id].logprob))
            top.append([self._candidate(id_, info) for id_, info in candidates.items()])
        return chosen, top

    def _candidate(self, token_id: int, info: Any) -> dict[str, Any]:
        text = info.decoded_token or self._decode(token_id)
        return {
            "rank": info.rank or 0,
            "token_id": token_id,
            "token": text,
            "logprob": _finite(info.logprob),
            "bytes": list(text.encode()) if text else None,
        }

    @staticmethod
    def _prompt_position(entry: Mapping[int, Any] | None) -> dict[str, Any] | None:
        if entry is None:
            return None
        # The keys are strings: they become a JSON object on their way to the frontend.
        return {
            str(token_id): {"logprob": _finite(info.logprob), "rank": info.rank, "decoded_token": info.decoded_token}
            for token_id, info in entry.items()
        }


def final_output(job: EngineJob, result: Any, pieces: list[EngineOutput], lease_s: float) -> EngineOutput:
    """The last piece of a job, with its pin if it has one; `lease_s` is how long the engine keeps that.

    Raises RequestError or WorkerError for a job that the engine itself gave up.
    """
    piece = pieces[-1] if pieces else EngineOutput(output={"index": 0, "token_ids": [], "finish_reason": "cancelled"}, tokens=0)
    if piece.output.get("finish_reason") == "error":
        if (job.request.get("sampling_options") or {}).get("guided_decoding"):
            raise RequestError("the engine could not follow guided_decoding; check its schema or grammar")
        raise WorkerError(f"job {job.id}: the engine failed it")
    params = result.kv_transfer_params or {}
    piece = replace(piece, finished=True, kv=facts_of(params) if params else None)
    if not params.get("remote_request_id"):
        return piece
    return replace(
        piece,
        ref=params["remote_request_id"],
        params=params,
        pinned_tokens=params["remote_num_tokens"],
        expires_at=time.time() + lease_s,
    )


def without_pin(output: EngineOutput) -> EngineOutput:
    """The last piece of a job whose pin is gone."""
    return replace(output, ref=None, params=None, pinned_tokens=0, expires_at=0.0)


def finish_reason(reason: str) -> str:
    """vLLM's finish reason in Dynamo's words."""
    return "cancelled" if reason.startswith("abort") else reason


def _usage(prompt: int, generated: int, cached: int | None) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": None if cached is None else {"cached_tokens": cached},
    }


def _finite(value: float) -> float:
    return float(value) if math.isfinite(value) else _MIN_LOGPROB
