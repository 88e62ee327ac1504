"""The pins of a simulated engine: blocks kept for a reader or a session's next round, until read, released or expired."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ampd.config import Graph, Worker
from ampd.workers.engines.base import EngineOutput
from ampd.workers.engines.sim_job import SimJob
from ampd.workers.engines.sim_kv import Block, BlockPool
from ampd.workers.engines.sim_link import Fabric
from ampd.workers.engines.vllm_args import PREFILL_LEASE_S, READ_MARGIN_S, decode_pin_s


@dataclass(slots=True)
class _Pin:
    blocks: list[Block]
    expiry: asyncio.TimerHandle


class SimPins:
    """The pins of engine `engine`, by their names."""

    def __init__(self, graph: Graph, worker: Worker, pool: BlockPool, engine: str, fabric: Fabric) -> None:
        self._pool, self._theta, self._engine, self._fabric = pool, worker.tensor_parallel, engine, fabric
        self._seconds = {"decode": decode_pin_s(graph), "prefill": float(PREFILL_LEASE_S)}
        self._pins: dict[str, _Pin] = {}
        self._numbers = itertools.count()

    def pin(self, live: SimJob, form: dict[str, Any], tokens: int) -> EngineOutput:
        """Keep a finished job's blocks; returns its last output, of `tokens` tokens in Dynamo's `form`, with the pin."""
        ref = f"{live.job.id}-{next(self._numbers)}"
        seconds = self._seconds[live.job.kind]
        expiry = asyncio.get_running_loop().call_later(seconds, self.release, [ref])
        blocks = -(-live.kv // live.block_size)
        self._pool.drop(live.blocks[blocks:])
        self._pins[ref] = _Pin(live.blocks[:blocks], expiry)
        params = {
            "engine": self._engine,
            "host": self._fabric.host,
            "port": self._fabric.port,
            "ref": ref,
            "tokens": live.kv,
            "theta": self._theta,
            "reused": live.cached_tokens + live.read_tokens,
        }
        return EngineOutput(
            output=form,
            tokens=tokens,
            finished=True,
            kv=live.facts,
            ref=ref,
            params=params,
            pinned_tokens=live.kv,
            expires_at=time.time() + seconds - READ_MARGIN_S,
        )

    def contents(self, ref: str, first: int, count: int) -> list[bytes] | None:
        """What stands for the KV of `count` blocks from `first` on; None when there is no such pin or it is shorter."""
        pin = self._pins.get(ref)
        if pin is None or first + count > len(pin.blocks):
            return None
        return [block.content for block in pin.blocks[first : first + count]]

    def release(self, refs: Sequence[str]) -> None:
        """Drop pins. Unknown ones are ignored."""
        for ref in refs:
            pin = self._pins.pop(ref, None)
            if pin is not None:
                pin.expiry.cancel()
                self._pool.drop(pin.blocks)

    def clear(self) -> None:
        """Drop all pins."""
        self.release(list(self._pins))
