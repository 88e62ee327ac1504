"""Sessions by their lengths: generated like the paper's traces, or loaded; and when they arrive. See docs/traces.md."""

from ampd.bench.traces.arrivals import arriving, endless, from_trace, gamma, poisson, scaled, sustained, truncated
from ampd.bench.traces.shapes import SHAPES, Shape
from ampd.bench.traces.synthetic import Reading, generate

__all__ = [
    "SHAPES",
    "Reading",
    "Shape",
    "arriving",
    "endless",
    "from_trace",
    "gamma",
    "generate",
    "poisson",
    "scaled",
    "sustained",
    "truncated",
]
