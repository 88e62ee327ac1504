"""Traces, load generation, comparison with a plain engine, and reports."""
