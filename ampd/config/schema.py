"""What a graph file may say: its sections, keys, types, defaults and limits."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Positive = Annotated[float, Field(gt=0)]
Port = Annotated[int, Field(ge=0, le=65535)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


# Names that `model.path` may hold instead of a folder: ampd makes these models itself.
BUILT_IN_MODELS = ("demo", "tiny", "small")


class Model(_Section):
    """The served model."""

    path: str = Field(
        "demo",
        min_length=1,
        description="model folder, or 'demo' (SmolLM2-135M-Instruct), or 'tiny' and 'small' (random weights, for tests)",
    )
    served_name: str = Field("smollm2-135m", min_length=1, description="model name in the OpenAI API")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    block_size: int = Field(32, ge=1, description="KV block size in tokens; the ledger hashes by it")
    max_model_len: int = Field(8192, ge=16, description="context length in tokens")
    tool_call_parser: str | None = Field(None, description="Dynamo tool-call parser, for example 'hermes'")
    reasoning_parser: str | None = Field(None, description="Dynamo reasoning parser, for example 'qwen3'")


class Targets(_Section):
    """Latency targets of one round."""

    ttft_s: Positive = Field(2.0, description="time to first token, seconds")
    itl_s: Positive = Field(0.1, description="mean time between tokens, seconds")


class Reorder(_Section):
    """Order of the prefill queues."""

    name: Literal["ampd", "edf", "hrrn", "fcfs"] = "ampd"
    window: int = Field(3, ge=1, le=64, description="tasks considered at each dequeue, and the bound on postponements")


class Predictive(_Section):
    """Settings of `policy.name: predictive`."""

    margin: Positive = Field(0.9, le=1, description="a candidate meets a target when its prediction is within this share of it")
    near: float = Field(0.05, ge=0, description="predictions closer than this share are equal, and one is picked at random")
    deflect: bool = Field(True, description="a decode worker other than the bound one may prefill when it has slack")


class ConditionalDisagg(_Section):
    """Settings of `policy.name: conditional_disagg`: Dynamo's `--router-conditional-disagg-config`, its keys and its defaults."""

    policy: Literal["isl_bounding", "prefill_load", "isl_or_load"] = Field(
        "isl_bounding", description="prefill locally when the new part is small, when the prefill worker is busy, or either"
    )
    eff_isl_threshold: int = Field(2048, ge=0, description="small: fewer prompt tokens than this are not held by the decode worker")
    eff_isl_ratio_threshold: float = Field(0.7, ge=0, le=1, description="and they are less than this share of the prompt")
    prefill_busy_threshold: float | None = Field(
        None, ge=0, description="busy: more prefill is queued than this share of max_num_batched_tokens; the load policies need it"
    )
    decode_busy_threshold: float | None = Field(
        None,
        ge=0,
        description="never local when the decode batch would fill more than this share of the KV pool; null = no such guard",
    )
    max_num_batched_tokens: int = Field(
        8192, ge=1, description="prefill tokens that prefill_busy_threshold is a share of (Dynamo reads it from the worker)"
    )

    @model_validator(mode="after")
    def _load_needs_a_line(self) -> ConditionalDisagg:
        if self.policy != "isl_bounding" and self.prefill_busy_threshold is None:
            raise ValueError(
                f"policy.conditional_disagg.policy = {self.policy!r} needs policy.conditional_disagg.prefill_busy_threshold, "
                "for example 1.0; or use 'isl_bounding'"
            )
        return self


class Ppd(_Section):
    """Settings of `policy.name: ppd`."""

    bypass_threshold: int = Field(512, ge=0, description="later rounds with fewer new tokens than this prefill locally")


class PrefixDecider(_Section):
    """Settings of `policy.name: prefix_decider`: llm-d's `prefix-based-pd-decider`, its nonCachedTokens and promptTokens."""

    non_cached_tokens: int = Field(
        0, ge=0, description="remote when at least this many prompt tokens are not held by the decode worker; 0 = never remote"
    )
    prompt_tokens: int = Field(
        0, ge=0, description="never remote when the whole prompt has fewer tokens than this; 0 = no such guard"
    )


class Policy(_Section):
    """Online scheduling."""

    name: Literal["paper", "predictive", "dynamo", "conditional_disagg", "ppd", "prefix_decider", "local_only"] = Field(
        "paper", description="paper: Algorithm 1; predictive: ampd's own; the others are the peers' rules, for comparison"
    )
    binding: Literal["kv_room", "predicted_load"] = Field("kv_room", description="how a new session's decode worker is chosen")
    rebind: Literal["never", "when_cheaper"] = Field(
        "never", description="when_cheaper: a session leaves a decode worker if what it saves exceeds the price of its history"
    )
    local_prefill: Literal["slack", "chunked", "exclusive"] = Field(
        "slack",
        description="local prefills beside a running batch: in chunks bounded by the batch's ITL slack, in prefill_chunk-sized "
        "chunks, or alone while the batch pauses",
    )
    alpha: Positive = Field(0.9, description="prefill slack: windowed TTFT <= alpha x target")
    beta: Positive = Field(0.85, description="decode slack: windowed ITL <= beta x target")
    window_s: Positive = Field(10.0, description="length of the TTFT and ITL windows, seconds")
    calibrate: bool = Field(
        True, description="workers learn by which factor their own times differ from the profile's, and routing multiplies by it"
    )
    force: list[Literal["local", "remote"]] = Field(
        default_factory=list, description="for tests: path of round 1, 2, ... of every session, repeating; empty = decide"
    )
    reorder: Reorder = Reorder()
    predictive: Predictive = Predictive()
    conditional_disagg: ConditionalDisagg = ConditionalDisagg()
    ppd: Ppd = Ppd()
    prefix_decider: PrefixDecider = PrefixDecider()


class Sessions(_Section):
    """Session identity and lifetime."""

    idle_ttl_s: Positive = Field(300.0, description="a session without a round for this long is closed and its KV released")
    key_sources: list[str] = Field(
        default_factory=lambda: ["agent_context.session_id"],
        description="where a session key is looked for, first match wins, after Dynamo's own session headers",
    )
    derive: bool = Field(True, description="derive a key from the first messages when the client sends none")


class State(_Section):
    """The shared state."""

    url: str = Field("embedded", description="redis://, rediss:// or unix:// URL, or 'embedded' to start a private redis-server")
    password_env: str | None = Field(None, description="name of the environment variable that holds the Redis password")
    deadline_ms: Positive = Field(
        5.0,
        description="a decision waits so long for the state, milliseconds; while Redis answers at all, a session's own row and "
        "its changes may take 100 times as long, reports 200 times",
    )
    max_pending: int = Field(4096, ge=1, description="calls that one connection may have under way; those beyond it fail at once")
    heartbeat_s: Positive = Field(0.5, description="between two reports of a worker")
    stale_after_s: Positive = Field(5.0, description="a worker silent for this long is no longer routed to")

    @model_validator(mode="after")
    def _order(self) -> State:
        if self.stale_after_s < 2 * self.heartbeat_s:
            raise ValueError(
                f"state.stale_after_s = {self.stale_after_s} must be at least twice state.heartbeat_s = {self.heartbeat_s}"
            )
        return self


class Frontend(_Section):
    """Dynamo's OpenAI frontend."""

    host: str = "127.0.0.1"
    port: Port = Field(0, description="0 = a free one")


class Coordinator(_Section):
    replicas: int = Field(1, ge=1, le=64)
    round_timeout_s: Positive = Field(600.0, description="a round without any progress for this long is failed")


class SimFailures(_Section):
    """What goes wrong in simulated engines, on purpose."""

    replicas: list[int] = Field(default_factory=list, description="numbers of the replicas that it concerns; empty = all")
    slow_factor: Positive = Field(1.0, description="their times are multiplied by this, and nobody is told")
    refuse_reads: float = Field(0.0, ge=0, le=1, description="share of the reads from their pins that they refuse")
    die_after_jobs: int | None = Field(None, ge=1, description="the engine dies when it is given its next job after so many")


class Sim(_Section):
    """Settings of `engine: sim`, a timed model of an engine: no model is computed, its answers are made up."""

    kv_tokens: int = Field(1_000_000, ge=1, description="KV pool in tokens")
    kv_bytes_per_token: int = Field(1, ge=1, description="for the figures of KV bytes read")
    speed: Positive = Field(1.0, description="times of the profile are divided by this; the same for all groups of a graph")
    per_process: int = Field(32, ge=1, description="replicas in one process")
    max_running: int = Field(256, ge=1, description="jobs that compute or decode at once")
    stream_interval: int = Field(
        1,
        ge=1,
        description="decode steps without any change are made in one go, up to so many, and their tokens leave together",
    )
    failures: SimFailures = SimFailures()


class Worker(_Section):
    """A group of equal workers."""

    name: str = Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
    role: Literal["prefill", "decode"]
    replicas: int = Field(1, ge=1, le=1024)
    engine: Literal["vllm", "sim"] = "vllm"
    sim: Sim = Sim()
    tensor_parallel: int = Field(1, ge=1)
    cores: list[str] = Field(
        default_factory=list, description="CPU engines: cores of each replica in vLLM's notation, for example ['0', '1']"
    )
    kv_cache_gib: int | None = Field(None, ge=1, description="KV pool of a CPU engine, GiB")
    prefill_chunk: int = Field(512, ge=64, description="tokens of prefill computed in one engine step")
    engine_args: dict[str, Any] = Field(default_factory=dict, description="further vLLM engine arguments")
    env: dict[str, str] = Field(default_factory=dict, description="further environment variables of the worker")

    @model_validator(mode="after")
    def _cores_for_all(self) -> Worker:
        if self.cores and len(self.cores) < self.replicas:
            raise ValueError(
                f"workers: {self.name} has replicas {self.replicas} but cores for {len(self.cores)}; give each an entry, or none"
            )
        return self


class Transport(_Section):
    """KV movement between workers."""

    host: str = Field("127.0.0.1", description="address of the NIXL side channel that peers can reach")
    ucx_tls: str | None = Field(None, description="UCX transports, for example 'tcp'; default lets UCX choose")
    buffer_device: Literal["cpu", "cuda"] = "cpu"
    min_read_tokens: int = Field(32, ge=0, description="a shorter history is recomputed rather than read")
    claim_timeout_s: Positive = Field(2.0, description="longest wait for a decode worker to confirm a handle")
    read_grace_s: Positive = Field(30.0, description="a claimed pin is kept this long for the read; longer than any read takes")


# Components that every graph has; worker groups are named beside them.
_COMPONENTS = {"redis", "frontend", "coordinator"}


class Graph(_Section):
    """One deployment: model, targets, policy, components."""

    apiVersion: Literal["ampd/v1"] = "ampd/v1"
    kind: Literal["Graph"] = "Graph"
    name: str = Field("ampd", pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40)
    model: Model = Model()
    targets: Targets = Targets()
    policy: Policy = Policy()
    profile: str | None = Field(None, description="profile.json with the cost functions of these engines")
    foreign_profile: bool = Field(
        False, description="take a profile of another model, block size or tensor parallel as it is; the log says what differs"
    )
    sessions: Sessions = Sessions()
    state: State = State()
    frontend: Frontend = Frontend()
    coordinator: Coordinator = Coordinator()
    workers: list[Worker] = Field(min_length=1)
    transport: Transport = Transport()
    metrics_port: int = Field(
        0, ge=0, le=32000, description="`ampd serve`: first port of the processes' Prometheus endpoints, one each; 0 = free ones"
    )
    drain_s: Positive = Field(
        1.0, description="rounds that run when a process is told to stop have this long; `ampd serve` allows 15 s for all of it"
    )

    @model_validator(mode="after")
    def _shape(self) -> Graph:
        names = [w.name for w in self.workers]
        if len(set(names)) != len(names):
            raise ValueError(f"workers: names must differ, got {names}")
        if taken := sorted(_COMPONENTS.intersection(names)):
            raise ValueError(f"workers: the name {taken[0]!r} belongs to another component, choose another")
        if not any(w.role == "decode" for w in self.workers):
            raise ValueError("workers: at least one entry needs role: decode")
        self._one_clock()
        return self

    def _one_clock(self) -> None:
        """The Coordinator divides every cost by one speed, so all engines of a graph must have it in common."""
        engines = [f"workers.{i}.engine = {w.engine!r}" for i, w in enumerate(self.workers)]
        if len({w.engine for w in self.workers}) > 1:
            raise ValueError(f"{', '.join(engines)}: one graph cannot mix them; give all groups the same engine")
        speeds = [f"workers.{i}.sim.speed = {w.sim.speed}" for i, w in enumerate(self.workers)]
        if self.workers[0].engine == "sim" and len({w.sim.speed for w in self.workers}) > 1:
            raise ValueError(f"{', '.join(speeds)}: all groups of a graph run at one speed; set each to the same value")
