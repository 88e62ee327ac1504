"""Step times from a GPU's stated peaks, operator by operator: the larger of compute and memory time, and a launch.

What it leaves out is how far kernels are from those peaks at each shape; two efficiencies stand for that. docs/profiling.md says
how well it meets measured tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from ampd.profiler.silicon.models import Shape
from ampd.profiler.silicon.systems import System

_BYTES = 2


@dataclass(frozen=True, slots=True)
class Roofline:
    """Seconds of a forward pass of `shape` on `tp` GPUs of `system`, in BF16. A `StepTimes` (points.py)."""

    shape: Shape
    system: System
    tp: int

    def t_pre(self, l_hist: int, l_incr: int) -> float:
        return self._layers(l_incr) + self._context_attention(l_hist, l_incr) + self._logits(1)

    def t_dec(self, batch: int, context: int) -> float:
        return self._layers(batch) + self._decode_attention(batch * context) + self._logits(batch)

    def t_mixed(self, batch: int, context: int, chunk: int) -> float:
        attention = self._context_attention(0, chunk) + self._decode_attention(batch * context)
        return self._layers(batch + chunk) + attention + self._logits(batch + 1)

    def _layers(self, tokens: int) -> float:
        """All of every layer but attention itself."""
        s, tp = self.shape, self.tp
        projections = self._matmul(tokens, s.hidden, (s.heads + 2 * max(s.kv_heads, tp)) * s.head_dim / tp)
        projections += self._matmul(tokens, s.heads * s.head_dim / tp, s.hidden)
        norms = 2 * self._move(4 * tokens * s.hidden)
        activation = self._move(3 * tokens * s.active_experts * s.intermediate / tp)
        return s.layers * (projections + self._mlp(tokens) + norms + activation + 2 * self._all_reduce(tokens))

    def _mlp(self, tokens: int) -> float:
        s, inner = self.shape, self.shape.intermediate / self.tp
        if s.experts == 1:
            return self._matmul(tokens, s.hidden, 2 * inner) + self._matmul(tokens, inner, s.hidden)
        # Experts that some token takes, and rows of each, when the router spreads tokens evenly.
        hit = s.experts * (1 - (1 - s.active_experts / s.experts) ** tokens)
        rows = tokens * s.active_experts / hit
        router = self._matmul(tokens, s.hidden, s.experts)
        return router + self._matmul(rows, s.hidden, 2 * inner, hit) + self._matmul(rows, inner, s.hidden, hit)

    def _matmul(self, rows: float, inner: float, columns: float, count: float = 1) -> float:
        """`count` products of (rows, inner) and (inner, columns), launched together."""
        moved = _BYTES * (rows * inner + inner * columns + rows * columns)
        return self._operator(count * 2 * rows * inner * columns / self.system.ampd.compute_efficiency, count * moved)

    def _context_attention(self, l_hist: int, l_incr: int) -> float:
        s = self.shape
        pairs = l_incr * (l_hist + (l_incr + 1) / 2)
        flops = 4 * pairs * s.heads * s.head_dim / self.tp / self.system.ampd.attention_efficiency
        return s.layers * self._operator(flops, (l_hist + l_incr) * self._kv_bytes())

    def _decode_attention(self, tokens: int) -> float:
        s = self.shape
        flops = 4 * tokens * s.heads * s.head_dim / self.tp / self.system.ampd.attention_efficiency
        return s.layers * self._operator(flops, tokens * self._kv_bytes())

    def _logits(self, rows: int) -> float:
        return self._matmul(rows, self.shape.hidden, self.shape.vocabulary / self.tp)

    def _kv_bytes(self) -> float:
        """Of one token in one layer on one GPU."""
        return self.shape.kv_bytes_per_token * self.shape.kv_share(self.tp) / self.shape.layers

    def _move(self, values: float) -> float:
        return self._operator(0, values * _BYTES)

    def _operator(self, flops: float, moved: float) -> float:
        gpu = self.system.gpu
        memory = moved / (gpu.mem_bw * gpu.mem_bw_empirical_scaling_factor)
        return max(flops / gpu.bfloat16_tc_flops, memory) + self.system.ampd.launch_s

    def _all_reduce(self, tokens: int) -> float:
        """Ring over the node's links: 2 (tp - 1) / tp of the data pass each of them."""
        if self.tp == 1:
            return 0.0
        moved = 2 * (self.tp - 1) / self.tp * tokens * self.shape.hidden * _BYTES
        return moved / (self.system.node.intra_node_bw * self.system.ampd.link_efficiency) + self.system.ampd.all_reduce_s
