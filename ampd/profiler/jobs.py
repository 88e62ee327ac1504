"""Run single jobs on an engine, with stamps, over prompts nobody has seen before."""

from __future__ import annotations

import json
import random
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampd.errors import SetupError
from ampd.workers.engines.base import Engine, EngineJob, EngineOutput, KvFacts


class RandomTokens:
    """Uniform token ids of a model's vocabulary, without its first and last entries, where special tokens live."""

    def __init__(self, model: Path, seed: int) -> None:
        config = json.loads((model / "config.json").read_text())
        size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
        if not isinstance(size, int) or size < 512:
            raise SetupError(f"{model / 'config.json'}: vocab_size = {size!r}: expected a number of at least 512")
        self._range = (256, size - 256) if size > 1024 else (64, size)
        self._rng = random.Random(seed)

    def take(self, count: int) -> list[int]:
        """`count` fresh tokens."""
        return self._rng.choices(range(*self._range), k=count)


@dataclass(slots=True)
class Ran:
    """One finished job: when it was submitted and when tokens came (perf_counter seconds, tokens), and its last output."""

    submitted: float
    stamps: list[tuple[float, int]] = field(default_factory=list)
    last: EngineOutput | None = None
    kv: KvFacts | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the engine's prefix cache."""
        usage = (self.last.output if self.last is not None else {}).get("completion_usage") or {}
        return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    @property
    def first_s(self) -> float:
        """Seconds from submission to the first token."""
        return self.stamps[0][0] - self.submitted


async def run_job(engine: Engine, job: EngineJob) -> Ran:
    """Run a job to its end."""
    ran = Ran(time.perf_counter())
    async for output in engine.generate(job):
        if output.tokens:
            ran.stamps.append((time.perf_counter(), output.tokens))
        ran.kv = output.kv or ran.kv
        ran.last = output
    return ran


def prefill_job(tokens: list[int], *, source: dict[str, Any] | None = None, source_tokens: int = 0, pin: bool = False) -> EngineJob:
    """Compute a prompt."""
    return EngineJob(
        id=f"profile-{uuid.uuid4().hex}", kind="prefill", token_ids=tokens, request=_request(tokens, 1),
        source=source, source_tokens=source_tokens, pin=pin,
    )  # fmt: skip


def decode_job(
    tokens: list[int], max_tokens: int, *, source: dict[str, Any] | None = None, source_tokens: int = 0, pin: bool = False
) -> EngineJob:
    """Compute a prompt and exactly `max_tokens` tokens of answer."""
    return EngineJob(
        id=f"profile-{uuid.uuid4().hex}", kind="decode", token_ids=tokens, request=_request(tokens, max_tokens),
        source=source, source_tokens=source_tokens, pin=pin,
    )  # fmt: skip


def _request(tokens: list[int], max_tokens: int) -> dict[str, Any]:
    return {
        "token_ids": tokens,
        "sampling_options": {"temperature": 0.0},
        "stop_conditions": {"max_tokens": max_tokens, "min_tokens": max_tokens, "ignore_eos": True},
        "output_options": {},
        "eos_token_ids": [],
        "annotations": [],
    }
