"""Stock vLLM, and the sessions whose tokens it gives."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

from engine_pair import BLOCK, prompt

from ampd.workers.engines.vllm_args import applied

TOKENS = 8


def _increments(*lengths: int, seed: int) -> list[list[int]]:
    return [prompt(length, seed + i) for i, length in enumerate(lengths)]


# Five rounds each, with increments that end before, on and after a block's edge.
SESSIONS = {
    "edges": _increments(97, 1, 31, 32, 33, seed=1000),
    "jumps": _increments(64, 257, 33, 1, 257, seed=2000),
}


class Plain:
    """An AsyncLLM as vLLM ships it, on core 0, in float32, without prefix caching: every prompt is computed whole."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._llm: Any = None
        self._ids = itertools.count()

    async def __aenter__(self) -> Plain:
        variables = {
            "VLLM_CPU_OMP_THREADS_BIND": "0",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",
            "HF_HUB_OFFLINE": "1",
        }
        with applied(variables):
            from vllm.engine.arg_utils import AsyncEngineArgs
            from vllm.v1.engine.async_llm import AsyncLLM

            args = AsyncEngineArgs(
                model=str(self._model),
                dtype="float32",
                block_size=BLOCK,
                max_model_len=8192,
                enforce_eager=True,
                enable_prefix_caching=False,
            )
            self._llm = AsyncLLM.from_engine_args(args)
        return self

    async def __aexit__(self, *_: object) -> None:
        llm, self._llm = self._llm, None
        await asyncio.to_thread(llm.shutdown, 10)

    async def tokens(self, token_ids: list[int], count: int) -> list[int]:
        """Greedy tokens."""
        from vllm import SamplingParams
        from vllm.inputs.engine import tokens_input

        params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False)
        found: list[int] = []
        async for output in self._llm.generate(tokens_input(token_ids), params, f"plain-{next(self._ids)}"):
            found = list(output.outputs[0].token_ids)
        return found

    async def session(self, increments: list[list[int]]) -> list[list[int]]:
        """The answers of a session's rounds."""
        so_far: list[int] = []
        answers = []
        for increment in increments:
            so_far += increment
            answers.append(await self.tokens(list(so_far), TOKENS))
            so_far += answers[-1]
        return answers
