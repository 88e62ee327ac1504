"""A round's own latency targets: what its client asks for, else the graph's.

Dynamo 1.6.1 hands a backend no plain headers. It does hand on those with one prefix, which the frontend's variable
DYN_METADATA_HEADER names, as `Context.metadata` without the prefix; and the entries of `nvext.annotations`. So a target arrives as

    x-slo-ttft-ms: 500                        with DYN_METADATA_HEADER=x-slo-, which `ampd serve` sets
    x-dynamo-meta-slo-ttft-ms: 500            with Dynamo's own default prefix
    "nvext": {"annotations": ["slo-ttft-ms:500"]}
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from ampd.errors import RequestError

_MOST_MS = 86_400_000.0


def find_target(name: str, metadata: Mapping[str, str], annotations: Iterable[Any], default_s: float) -> float:
    """The target `name` ("ttft" or "tpot") in seconds. Raises RequestError naming the field for a value that is no time."""
    for key in (f"{name}-ms", f"slo-{name}-ms"):
        if (text := metadata.get(key)) is not None:
            return _seconds(f"x-slo-{name}-ms", text)
    if annotations:
        prefix = f"slo-{name}-ms:"
        for annotation in annotations:
            if isinstance(annotation, str) and annotation.startswith(prefix):
                return _seconds(f"nvext.annotations {prefix[:-1]}", annotation[len(prefix) :])
    return default_s


def _seconds(field: str, text: str) -> float:
    try:
        milliseconds = float(text)
    except ValueError:
        milliseconds = math.nan
    if not 0 < milliseconds <= _MOST_MS:  # also false for NaN
        raise RequestError(f"{field} is {text!r}: give a number of milliseconds above 0 and at most a day, for example 500")
    return milliseconds / 1000
