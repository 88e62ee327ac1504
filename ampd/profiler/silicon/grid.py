"""The points that an estimate is drawn through: all that fits the KV capacity, dense where tables bend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ampd.cost_model import DecodePoint, KvPoint, MixedPoint, PrefillPoint
from ampd.profiler.silicon.models import Shape
from ampd.profiler.silicon.systems import System

HISTORY = (0, 512, 1024, 2048, 4096, 8192, 12288, 16384, 24576, 32768)
INCREMENT = (16, 32, 64, 128, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
BATCH = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256)
CONTEXT = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768)  # of each sequence
MIXED_BATCH = (1, 4, 16, 64, 128, 256)
MIXED_CONTEXT = (512, 2048, 8192, 32768)
CHUNK = (16, 64, 128, 256, 512, 1024, 2048, 4096)
TRANSFER = (512, 4096, 16384, 40960)
TRANSPORTS = ("nvlink", "rdma")  # inside a node, across nodes


class StepTimes(Protocol):
    """Seconds of one forward pass. `context` is of each sequence of the batch, the new token included."""

    def t_pre(self, l_hist: int, l_incr: int) -> float: ...

    def t_dec(self, batch: int, context: int) -> float: ...

    def t_mixed(self, batch: int, context: int, chunk: int) -> float: ...


def prefill_points(times: StepTimes, tp: int, capacity: int) -> Iterator[PrefillPoint]:
    for l_hist in HISTORY:
        for l_incr in INCREMENT:
            if l_hist + l_incr <= capacity:
                yield PrefillPoint(l_hist, l_incr, _seconds(times.t_pre(l_hist, l_incr)), tp)


def decode_points(times: StepTimes, tp: int, capacity: int) -> Iterator[DecodePoint]:
    for batch in BATCH:
        for context in CONTEXT:
            if batch * context <= capacity:
                yield DecodePoint(batch, batch * context, _seconds(times.t_dec(batch, context)), tp)


def mixed_points(times: StepTimes, tp: int, capacity: int) -> Iterator[MixedPoint]:
    for batch in MIXED_BATCH:
        for context in MIXED_CONTEXT:
            for chunk in CHUNK:
                if batch * context + chunk <= capacity:
                    yield MixedPoint(batch, batch * context, chunk, _seconds(times.t_mixed(batch, context, chunk)), tp)


def transfer_points(shape: Shape, system: System, tps: Sequence[int]) -> Iterator[KvPoint]:
    """T_kv at the stated bandwidths, for every pair of thetas, both directions and both transports: a lower bound."""
    bandwidths = dict(zip(TRANSPORTS, (system.node.intra_node_bw, system.node.inter_node_bw), strict=True))
    for transport, bandwidth in bandwidths.items():
        for src in tps:
            for dst in tps:
                # What arrives in all: a KV head that several GPUs of the reader hold is sent to each. The side with fewer GPUs
                # has fewer links.
                arriving = shape.kv_bytes_per_token * shape.kv_share(dst) * dst
                for tokens in TRANSFER:
                    seconds = _seconds(system.ampd.transfer_start_s + tokens * arriving / (min(src, dst) * bandwidth))
                    yield KvPoint(tokens, "history", seconds, src, dst, transport)
                    yield KvPoint(tokens, "increment", seconds, src, dst, transport)


def _seconds(value: float) -> float:
    """To six digits: more would be the package's arithmetic, not a measurement."""
    return float(f"{value:.6g}")
