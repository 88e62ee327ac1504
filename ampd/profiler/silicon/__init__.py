"""Profiles without a GPU: from aiconfigurator-core's measured operator tables, or from a stated roofline."""

from ampd.profiler.silicon.estimate import parse_tps, silicon_profile

__all__ = ["parse_tps", "silicon_profile"]
