"""Simulated engines with costs that a test can reckon with, and jobs on them."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from job_outputs import Outputs

from ampd.config import Graph, build_graph
from ampd.cost_model import Meta, PiecewiseCostModel, Profile, load_profile, save_profile
from ampd.cost_model.functions import DecodeFit, FitError, PrefillFit, Segment, TransferFit
from ampd.policy.types import Direction
from ampd.workers.engines.base import EngineJob
from ampd.workers.engines.sim import SimEngine
from ampd.workers.engines.sim_link import Fabric
from ampd.workers.engines.sim_text import Author, Chain, words

BLOCK = 16
WORDS = words(Path("nowhere"))
_ids = itertools.count()
_ERROR = FitError(heldout_median=0.0, heldout_p95=0.0, points=1)


def profile(folder: Path) -> Path:
    """A prefill costs 0.2 ms a token, a decode step 10 ms and 1 ms a sequence, a transfer 20 ms and 0.1 ms a token."""
    meta = Meta(
        model="m",
        engine="sim",
        engine_version="0",
        device="none",
        block_size=BLOCK,
        kv_bytes_per_token=1,
        kv_capacity_tokens=1,
        created="2026-01-01T00:00:00+00:00",
        source="estimated",
    )
    span = (1, 10_000)
    pre = PrefillFit(1, 0.0, 0.0, [Segment(None, 0.0002)], span, span, _ERROR)
    dec = DecodeFit(1, 0.010, 0.0, [Segment(None, 0.001)], span, span, _ERROR)
    directions: tuple[Direction, ...] = ("history", "increment")
    kv = [TransferFit(1, 1, d, 0.020, [Segment(None, 0.0001)], span, _ERROR) for d in directions]
    save_profile(Profile(meta=meta, t_pre=[pre], t_dec=[dec], t_kv=kv), folder / "profile.json")
    return folder / "profile.json"


def graph(folder: Path, sim: dict[str, Any] | None = None, **sections: Any) -> Graph:
    """One prefill and one decode group of two replicas."""
    both = {"engine": "sim", "replicas": 2, "prefill_chunk": 512, "sim": {"kv_tokens": 10_000, **(sim or {})}}
    data: dict[str, Any] = {
        "model": {"path": "nowhere", "served_name": "m", "block_size": BLOCK, "max_model_len": 8192},
        "profile": str(profile(folder)),
        "workers": [{"name": "p", "role": "prefill", **both}, {"name": "d", "role": "decode", **both}],
        **sections,
    }
    return build_graph(data)


def cost(folder: Path) -> PiecewiseCostModel:
    return load_profile(profile(folder)).cost_model()


@asynccontextmanager
async def engines(graph: Graph, *wanted: tuple[str, int]) -> AsyncIterator[list[SimEngine]]:
    """Started engines, each by its group's name and its replica; all in one process."""
    fabric = Fabric("127.0.0.1", 0, 2.0)
    groups = {group.name: group for group in graph.workers}
    made = [SimEngine(graph, groups[name], index, fabric) for name, index in wanted]
    try:
        for engine in made:
            await engine.start()
        yield made
    finally:
        for engine in made:
            await engine.stop()


def prompt(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, 2000) for _ in range(length)]


def answer_to(prompt: Sequence[int], count: int, block_size: int, words: Sequence[int]) -> list[int]:
    """What an engine that makes no mistake answers."""
    chain = Chain(prompt, block_size)
    answer: list[int] = []
    while len(answer) < count:
        full = len(chain.digests)
        content = chain.digests[-1] if full else b""
        token = Author(words, content, chain.tokens[full * block_size :]).next(())
        answer.append(token)
        chain.append(token)
    return answer


def right(prompt: list[int], count: int) -> list[int]:
    """The answer of an engine that makes no mistake."""
    return answer_to(prompt, count, BLOCK, WORDS)


@dataclass
class Played(Outputs):
    """A job's outputs, and when its tokens came."""

    times: list[float] = field(default_factory=list)

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in itertools.pairwise(self.times)]

    @property
    def itl_s(self) -> float:
        return (self.times[-1] - self.times[0]) / (len(self.tokens) - 1)


async def play(engine: SimEngine, kind: Any, tokens: list[int], count: int = 1, **job: Any) -> Played:
    """Run a job to its end."""
    played = Played()
    ask = {"stop_conditions": {"max_tokens": count, "ignore_eos": True}}
    job = {"id": f"job-{next(_ids)}", "pin": False, "request": ask, **job}
    async for output in engine.generate(EngineJob(kind=kind, token_ids=tokens, **job)):
        played.outputs.append(output)
        if output.tokens:
            played.times.append(time.monotonic())
    return played


async def began(engine: SimEngine, jobs: int) -> None:
    """Wait until so many jobs decode."""
    while len(engine._batch.decoding) < jobs:
        await asyncio.sleep(0.001)
