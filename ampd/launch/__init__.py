"""Run a graph as local processes."""
