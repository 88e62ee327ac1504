"""Measurements; docs/bench.md lists them."""
