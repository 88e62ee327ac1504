"""Measurements of a running graph: `python -m benchmarks.NAME`."""
