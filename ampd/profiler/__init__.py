"""Measure an engine and fit the cost functions."""
