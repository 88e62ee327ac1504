"""The Engine protocol: what a worker process needs of the engine it owns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Fixed facts, known once the engine has started. Sizes in tokens."""

    engine: str  # "vllm" or "sim"
    version: str
    model: str
    block_size: int
    kv_total: int
    max_model_len: int
    theta: int
    kv_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The engine's last step, as it reported it. `kv_used` counts blocks in use, pinned ones included.

    `context`, `link_s` and `kv_written` are those of WorkerView.
    """

    running: int = 0
    waiting: int = 0
    kv_used: int = 0
    context: int = 0
    link_s: float = 0.0
    kv_written: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineJob:
    """One request for the engine.

    `kind` prefill: compute the prompt, emit one token, pin the KV for a remote reader.
    `kind` decode: generate as `request` (Dynamo's preprocessed request) says.
    `source` are the transfer parameters of a pin to read KV from: on a prefill job the session's history on a decode worker
    (`source_tokens` leading tokens of it match), on a decode job the prompt on a prefill worker.
    `pin` keeps the KV at the end and returns its transfer parameters. `release` names pins to drop as soon as this job holds
    its own references to whatever it can reuse of them.
    Both are used up whatever becomes of the job: a source that is read, found in the own cache, too short to be worth it, of
    another prompt, or given with a job that is refused or aborted, is ended on its holder; only a holder that cannot be reached
    keeps it to its expiry.
    """

    id: str
    kind: Literal["prefill", "decode"]
    token_ids: Sequence[int]
    request: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] | None = None
    source_tokens: int = 0
    pin: bool = True
    itl_target_s: float | None = None  # of a decode job: bounds the chunks of local prefills that run beside it; None: the graph's
    priority: int = 0
    release: Sequence[str] = ()
    cache_salt: str | None = None
    trace: dict[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvFacts:
    """What the connector saw of one job's KV, in tokens and seconds."""

    read_tokens: int = 0
    cached_tokens: int = 0
    read_s: float = 0.0
    read_started_at: float | None = None  # unix seconds
    read_ended_at: float | None = None
    compute_started_at: float | None = None
    read_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOutput:
    """A piece of output. `output` is in Dynamo's engine-output form (token_ids, index, finish_reason, log_probs, ...).

    The last piece has `finished`; with a pin also `ref`, `params` (the reader's transfer parameters), `pinned_tokens` and
    `expires_at` (unix seconds).
    """

    output: dict[str, Any]
    tokens: int
    finished: bool = False
    kv: KvFacts | None = None
    ref: str | None = None
    params: dict[str, Any] | None = None
    pinned_tokens: int = 0
    expires_at: float = 0.0


class Engine(Protocol):
    """An engine. All methods are called from the worker's event loop."""

    @property
    def info(self) -> EngineInfo:
        """Facts of the started engine."""

    async def start(self) -> None:
        """Load the model. Raises SetupError naming the setting to change when the engine cannot start."""

    def generate(self, job: EngineJob) -> AsyncIterator[EngineOutput]:
        """Run a job. Raises RequestError for a request the engine refuses, EngineDead when it can serve no more.

        Closing the iterator early does not stop the job: call `abort`.
        """

    async def abort(self, job_id: str) -> None:
        """Stop a job in any phase. Returns once the engine has taken note; a KV transfer under way is never cut."""

    async def finish(self, job_id: str) -> None:
        """End a job of one choice at its next token: it finishes by length, and is pinned. One that has none yet is aborted.

        Unknown ids are ignored: a job may have ended meanwhile.
        """

    async def release(self, refs: Sequence[str]) -> None:
        """Drop pins. Unknown refs are ignored: a pin may have been read or have expired meanwhile."""

    def load(self) -> EngineLoad:
        """The last known load, without waiting for the engine."""

    async def reset_prefix_cache(self) -> None:
        """Forget all unpinned cached KV."""

    async def wait_dead(self) -> None:
        """Return when the engine has died; never returns otherwise."""

    async def stop(self) -> None:
        """Stop the engine and all its processes."""
