"""Raw points of a profile: what was run, and the median of its times.

`samples` is how many times the median is of, `spread` the relative half-width of its 95 % interval (0: one sample, or a table).
Thetas are tensor-parallel degrees; all sizes are tokens.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ampd.policy.types import Direction

Seconds = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class PrefillPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One prefill of `l_incr` tokens after `l_hist` cached ones."""

    l_hist: Count
    l_incr: Count
    seconds: Seconds
    theta: int = 1
    samples: Count = 1
    spread: Seconds = 0.0


class DecodePoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One decode step; `context` counts the KV tokens of the whole batch."""

    batch: Count
    context: Count
    seconds: Seconds
    theta: int = 1
    samples: Count = 1
    spread: Seconds = 0.0


class MixedPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One decode step, as in DecodePoint, that also prefills `chunk` tokens after `l_hist` of the same prompt."""

    batch: Count
    context: Count
    chunk: Count
    seconds: Seconds
    theta: int = 1
    l_hist: Count = 0
    samples: Count = 1
    spread: Seconds = 0.0


class KvPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One transfer. `transport` names one of several that a profile holds; None: the profile's only one."""

    tokens: Count
    direction: Direction
    seconds: Seconds
    theta_src: int = 1
    theta_dst: int = 1
    transport: str | None = None
    samples: Count = 1
    spread: Seconds = 0.0


class Points(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Raw measurements, one entry for each argument tuple."""

    prefill: list[PrefillPoint] = []
    decode: list[DecodePoint] = []
    kv: list[KvPoint] = []
    mixed: list[MixedPoint] = []
