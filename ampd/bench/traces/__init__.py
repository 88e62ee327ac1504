"""Sessions by their lengths: generated like the paper's traces, or loaded; and when they arrive. See docs/traces.md."""

from ampd.bench.traces.arrivals import arriving, endless, from_trace, gamma, poisson, scaled, sustained, truncated
from ampd.bench.traces.loading import Format, load_trace, recognise
from ampd.bench.traces.rows import save_rows
from ampd.bench.traces.shapes import SHAPES, Shape
from ampd.bench.traces.synthetic import Reading, generate

__all__ = [
    "SHAPES",
    "Format",
    "Reading",
    "Shape",
    "arriving",
    "endless",
    "from_trace",
    "gamma",
    "generate",
    "load_trace",
    "poisson",
    "recognise",
    "save_rows",
    "scaled",
    "sustained",
    "truncated",
]
