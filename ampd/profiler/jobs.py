"""Run single jobs on an engine, with stamps, over prompts nobody has seen before."""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ampd.errors import SetupError, WorkerError
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
    """One job, finished or not: when it was submitted and when tokens came (perf_counter seconds, tokens), and its last output.

    `heard` is set with every piece.
    """

    submitted: float = 0.0
    stamps: list[tuple[float, int]] = field(default_factory=list)
    last: EngineOutput | None = None
    kv: KvFacts | None = None
    heard: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the engine's prefix cache."""
        usage = (self.last.output if self.last is not None else {}).get("completion_usage") or {}
        return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    @property
    def first_at(self) -> float:
        """When the first token came."""
        return self.stamps[0][0]

    @property
    def first_s(self) -> float:
        """Seconds from submission to the first token."""
        return self.first_at - self.submitted


async def run_job(engine: Engine, job: EngineJob, ran: Ran | None = None) -> Ran:
    """Run a job to its end. Raises WorkerError when it gives no token."""
    ran = ran if ran is not None else Ran()
    ran.submitted = time.perf_counter()
    async for output in engine.generate(job):
        if output.tokens:
            ran.stamps.append((time.perf_counter(), output.tokens))
        ran.kv = output.kv or ran.kv
        ran.last = output
        ran.heard.set()
    if not ran.stamps:
        raise WorkerError(f"a {job.kind} job of {len(job.token_ids)} tokens ended without a token")
    return ran


class Batch:
    """Decode jobs that run together, until the block ends."""

    def __init__(self, engine: Engine, jobs: Sequence[EngineJob]) -> None:
        self._engine, self._jobs = engine, jobs
        self._heard = asyncio.Event()
        self.runs = [Ran(heard=self._heard) for _ in jobs]
        self._tasks: list[asyncio.Task[Ran]] = []

    @property
    def whole(self) -> bool:
        """Whether all of them still run."""
        return not any(task.done() for task in self._tasks)

    async def advance(self, pieces: int) -> None:
        """Wait until each has given so many further pieces, or one has ended. Raises what a failed one raised."""
        wanted = [len(run.stamps) + pieces for run in self.runs]
        while self.whole and any(len(run.stamps) < count for run, count in zip(self.runs, wanted, strict=True)):
            self._heard.clear()
            await self._heard.wait()
        for task in self._tasks:
            if task.done():
                task.result()

    async def __aenter__(self) -> Batch:
        self._tasks = [asyncio.create_task(run_job(self._engine, job, run)) for job, run in zip(self._jobs, self.runs, strict=True)]
        for task in self._tasks:
            task.add_done_callback(lambda _: self._heard.set())
        return self

    async def __aexit__(self, *exc: object) -> None:
        for job in self._jobs:
            await self._engine.finish(job.id)
        await asyncio.gather(*self._tasks, return_exceptions=True)


def prefill_job(
    tokens: list[int], *, source: dict[str, Any] | None = None, source_tokens: int = 0, pin: bool = False, salt: str | None = None
) -> EngineJob:
    """Compute a prompt."""
    return _job("prefill", tokens, 1, source=source, source_tokens=source_tokens, pin=pin, cache_salt=salt)


def decode_job(
    tokens: list[int],
    max_tokens: int,
    *,
    source: dict[str, Any] | None = None,
    source_tokens: int = 0,
    pin: bool = False,
    salt: str | None = None,
) -> EngineJob:
    """Compute a prompt and exactly `max_tokens` tokens of answer."""
    return _job("decode", tokens, max_tokens, source=source, source_tokens=source_tokens, pin=pin, cache_salt=salt)


def _job(kind: Literal["prefill", "decode"], tokens: list[int], max_tokens: int, **more: Any) -> EngineJob:
    request = {
        "token_ids": tokens,
        "sampling_options": {"temperature": 0.0},
        "stop_conditions": {"max_tokens": max_tokens, "min_tokens": max_tokens, "ignore_eos": True},
        "output_options": {},
        "eos_token_ids": [],
        "annotations": [],
    }
    return EngineJob(id=f"profile-{uuid.uuid4().hex}", kind=kind, token_ids=tokens, request=request, **more)
