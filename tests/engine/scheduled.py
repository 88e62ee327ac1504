"""ampd's decode scheduler in this process, on vLLM's own request and block bookkeeping; only the computing is left out.

A step takes what `step_s` says, on a clock of its own, so that the scheduler's decisions do not depend on this machine.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from engine_pair import BLOCK, graph, prompt
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from ampd.workers.engines.vllm_args import engine_args
from ampd.workers.kv.decode_scheduler import AmpdDecodeScheduler
from ampd.workers.kv.params import ITL_TARGET

TARGET_S = 0.5  # the graph's
_ids = itertools.count()


def real_step_s(batch: int, chunk: int) -> float:
    """A machine that ampd's coarse cost model does not describe: a tenth of its speed at decoding, a third at prefilling."""
    return 0.1 * bool(batch) + 0.01 * batch + 0.001 * chunk


@dataclass
class Played:
    """A step: decoding requests and tokens of each prefill in it."""

    decoded: Set[str]
    prefilled: dict[str, int]
    seconds: float


@dataclass
class Engine:
    """The scheduler, and its steps so far. `ahead`: steps that are planned before the one that runs has ended."""

    scheduler: AmpdDecodeScheduler
    ahead: int = 0
    step_s: Callable[[int, int], float] = real_step_s
    now: float = 0.0
    steps: list[Played] = field(default_factory=list)
    left: dict[str, list[float]] = field(default_factory=dict)  # when each token of a request left
    under_way: deque[tuple[Any, list[list[int]], float]] = field(default_factory=deque)

    def add(self, tokens: int, answer: int, itl_target_s: float | None = None, seed: int | None = None) -> str:
        """Submit a request; the answer has that many tokens."""
        request = self.request(tokens, answer, itl_target_s, seed)
        self.left[request.request_id] = []
        self.scheduler.add_request(request)
        return request.request_id

    def request(self, tokens: int, answer: int, itl_target_s: float | None = None, seed: int | None = None) -> Request:
        """A request of a prompt that only those of the same seed share blocks with."""
        number = next(_ids)
        params: dict[str, Any] = {} if itl_target_s is None else {ITL_TARGET: itl_target_s}
        sampling = SamplingParams(max_tokens=answer, ignore_eos=True, extra_args={"kv_transfer_params": params})
        sampling.update_from_generation_config({}, 0)
        token_ids, hasher = prompt(tokens, number if seed is None else seed), get_request_block_hasher(BLOCK, sha256)
        return Request(f"r{number}", token_ids, sampling, None, block_hasher=hasher)

    def step(self) -> Played:
        """Plan a step, and let the oldest one under way end if there are more than `ahead`. Returns the planned one."""
        begun = {r.request_id for r in self.scheduler.running if r.num_output_tokens + r.num_output_placeholders}
        output = self.scheduler.schedule()
        planned: dict[str, int] = output.num_scheduled_tokens
        prefilled = {i: n for i, n in planned.items() if i not in begun}
        decoded = planned.keys() - prefilled.keys()
        played = Played(decoded, prefilled, self.step_s(len(decoded), sum(prefilled.values())))
        self.steps.append(played)
        sampled = [[7] if not self.scheduler.requests[i].is_prefill_chunk else [] for i in planned]
        self.under_way.append((output, sampled, played.seconds))
        if len(self.under_way) > self.ahead:
            self._end(*self.under_way.popleft())
        return played

    def _end(self, output: Any, sampled: list[list[int]], seconds: float) -> None:
        self.now += seconds
        ids = list(output.num_scheduled_tokens)
        result = ModelRunnerOutput(ids, {id: n for n, id in enumerate(ids)}, sampled)
        for outputs in self.scheduler.update_from_output(output, result).values():
            for one in outputs.outputs:
                self.left[one.request_id] += [self.now] * len(one.new_token_ids)

    def run(self, until: Callable[[], bool], most: int = 3000) -> list[Played]:
        """Step until something holds; the steps taken."""
        begun = len(self.steps)
        while not until():
            assert len(self.steps) - begun < most, "not within so many steps"
            self.step()
        return self.steps[begun:]

    def has_begun(self, *ids: str) -> bool:
        return all(self.left[i] for i in ids)

    def is_over(self, *ids: str) -> bool:
        return not any(i in self.scheduler.requests for i in ids)

    def itl_s(self, id: str) -> float:
        times = self.left[id]
        return (times[-1] - times[0]) / (len(times) - 1)


def make_engine(model: Path, local_prefill: str, blocks: int = 2000, ahead: int = 0, seqs: int = 256) -> Engine:
    """A decode worker's scheduler with chunks of at most 512, on the coarse cost model."""
    settings = graph(model, policy={"local_prefill": local_prefill}, targets={"itl_s": TARGET_S})
    worker = next(w for w in settings.workers if w.role == "decode")
    worker = worker.model_copy(update={"engine_args": {"max_num_seqs": seqs}})
    config = AsyncEngineArgs(**engine_args(settings, worker, cpu=True)).create_engine_config()
    config.cache_config.num_gpu_blocks = blocks
    init_none_hash(sha256)
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    cache = KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    engine: Engine

    class Timed(AmpdDecodeScheduler):
        clock = staticmethod(lambda: engine.now)

    scheduler = Timed(config, cache, StructuredOutputManager(config), BLOCK, log_stats=True)
    engine = Engine(scheduler, ahead)
    return engine
