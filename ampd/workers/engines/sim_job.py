"""One job of the simulated engine: what it asks for, the KV it holds, and its outputs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from ampd.errors import AmpdError, RequestError
from ampd.workers.engines.base import EngineJob, EngineOutput, KvFacts
from ampd.workers.engines.sim_kv import Block
from ampd.workers.engines.sim_text import Author, Chain

# Asked for, these change an answer in a way that made-up tokens cannot.
_UNKNOWN = {"sampling_options": ("guided_decoding",), "output_options": ("logprobs", "prompt_logprobs")}

Phase = Literal["waiting", "reading", "prefilling", "decoding", "ended"]


@dataclass(slots=True)
class Ask:
    """When an answer ends: at `most` tokens, or from `least` on at one of `eos` or `stop`. `choices` answers at once."""

    most: int
    least: int = 0
    eos: tuple[int, ...] = ()
    stop: frozenset[int] = frozenset()
    choices: int = 1


def parse(job: EngineJob, max_model_len: int) -> Ask:
    """What a job asks for. Raises RequestError for what the engine refuses, in the cases in which vLLM does."""
    room = max_model_len - len(job.token_ids)
    if not job.token_ids or room < 1:
        raise RequestError(f"the prompt has {len(job.token_ids)} tokens; the model takes 1 to {max_model_len - 1}")
    if job.kind == "prefill":
        return Ask(most=1)
    for section, names in _UNKNOWN.items():
        for name in names:
            if (job.request.get(section) or {}).get(name):
                raise RequestError(f"{section}.{name}: the sim engine has none")
    stop: Mapping[str, Any] = job.request.get("stop_conditions") or {}
    most, least = stop.get("max_tokens"), stop.get("min_tokens") or 0
    if most is not None and most < 1:
        raise RequestError(f"max_tokens = {most}: must be at least 1")
    if most is not None and least > most:
        raise RequestError(f"min_tokens = {least}: must not be above max_tokens = {most}")
    eos = () if stop.get("ignore_eos") else tuple(job.request.get("eos_token_ids") or ())
    ids = frozenset([*(stop.get("stop_token_ids") or ()), *(stop.get("stop_token_ids_hidden") or ())])
    choices = int((job.request.get("sampling_options") or {}).get("n") or 1)
    return Ask(room if most is None else min(most, room), least, eos, ids, choices)


class SimJob:
    """A job from its submission to its end. `kv` counts the leading tokens whose KV is in `blocks`."""

    def __init__(self, job: EngineJob, ask: Ask, number: int, block_size: int, itl_target_s: float) -> None:
        self.job, self.ask, self.block_size = job, ask, block_size
        self.order = (-job.priority, number)
        self.itl_target_s = job.itl_target_s or itl_target_s
        self.chain = Chain(job.token_ids, block_size)
        self._salt = b"" if job.cache_salt is None else sha256(job.cache_salt.encode()).digest()[:8]
        self.outputs: asyncio.Queue[EngineOutput | AmpdError] = asyncio.Queue()
        self.phase: Phase = "waiting"
        self.blocks: list[Block] = []
        self.kv = 0
        self.filled = 0  # leading blocks that are full
        self.author: Author | None = None
        self.others: list[Author] = []  # of the choices after the first
        self.generated = 0
        self.first_at = 0.0
        self.source = job.source  # until its pin has been ended
        self.release: Sequence[str] = job.release  # until dropped
        self.cached_tokens = self.read_tokens = 0
        self.read_failed = False
        self.read_started_at: float | None = None  # unix seconds, as the two below
        self.read_ended_at: float | None = None
        self.compute_started_at: float | None = None
        self.reused: int | None = None  # prompt tokens that the writer of the source did not compute

    @property
    def length(self) -> int:
        """Tokens so far, prompt and answer."""
        return len(self.chain.tokens)

    def keys(self) -> list[bytes]:
        """Prefix cache keys of the full blocks that a job may find rather than compute: never all of its tokens."""
        digests = self.chain.digests[: (self.length - 1) // self.block_size]
        return [self._salt + digest for digest in digests] if self._salt else list(digests)

    def key(self, block: int) -> bytes:
        """The prefix cache key of one full block."""
        return self._salt + self.chain.digests[block]

    def content_before(self, block: int) -> bytes:
        """What stands for all KV before a block."""
        return self.blocks[block - 1].content if block else b""

    @property
    def facts(self) -> KvFacts:
        """What became of the job's KV."""
        began, ended = self.read_started_at, self.read_ended_at
        return KvFacts(
            read_tokens=self.read_tokens,
            cached_tokens=self.cached_tokens,
            read_s=ended - began if began is not None and ended is not None else 0.0,
            read_started_at=began,
            read_ended_at=ended,
            compute_started_at=self.compute_started_at,
            read_failed=self.read_failed,
        )

    def computing(self) -> None:
        """The job is part of the coming step."""
        if self.compute_started_at is None:
            self.compute_started_at = time.time()

    def sample(self, words: Sequence[int]) -> tuple[int, str | None]:
        """The next token, and the reason to finish with it if there is one; it joins the sequence of a decode job.

        All tokens so far must have their KV.
        """
        if self.author is None:
            full = self.kv // self.block_size
            tail = self.chain.tokens[full * self.block_size : self.kv]
            self.author = Author(words, self.content_before(full), tail)
            self.others = [Author(words, self.content_before(full), tail, choice) for choice in range(1, self.ask.choices)]
        free = self.generated + 1 >= self.ask.least
        token = self.author.next(self.ask.eos if free else ())
        self.generated += 1
        if self.job.kind == "decode":
            self.chain.append(token)
        if free and (token in self.ask.eos or token in self.ask.stop):
            return token, "stop"
        return token, "length" if self.generated >= self.ask.most else None

    def emit(self, tokens: Sequence[int], reason: str | None, first: bool) -> dict[str, Any]:
        """The output of some tokens of the first choice, in Dynamo's form; those of the others are queued before it."""
        for index, author in enumerate(self.others, 1):
            own = []
            for _ in tokens:
                own.append(author.next(()))
                author.read(own[-1])
            self.outputs.put_nowait(EngineOutput(output=self._form(index, own, reason, first), tokens=len(own)))
        return self._form(0, tokens, reason, first)

    def _form(self, index: int, tokens: Sequence[int], reason: str | None, first: bool) -> dict[str, Any]:
        out: dict[str, Any] = {"index": index, "token_ids": list(tokens)}
        if first or reason:
            prompt, cached = len(self.job.token_ids), self.cached_tokens if self.reused is None else self.reused
            out["completion_usage"] = {
                "prompt_tokens": prompt,
                "completion_tokens": self.generated * self.ask.choices,
                "total_tokens": prompt + self.generated * self.ask.choices,
                "prompt_tokens_details": {"cached_tokens": cached},
            }
        if reason:
            out["finish_reason"] = reason
        if reason == "stop" and tokens[-1] in self.ask.stop:
            out["stop_reason"] = tokens[-1]
        return out


def cancelled(job: SimJob) -> EngineOutput:
    """The end of an aborted job."""
    return EngineOutput(output={"index": 0, "token_ids": [], "finish_reason": "cancelled"}, tokens=0, finished=True, kv=job.facts)
