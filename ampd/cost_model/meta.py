"""What a profile's figures belong to, and under which conditions they came about."""

from __future__ import annotations

from typing import Literal

import msgspec


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where an estimate comes from: a package and its version, the system, and the tables or statements that were read."""

    package: str
    version: str
    system: str
    tables: list[str] = []
    notes: str = ""


class Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The engine, the machine and the conditions. `source` "estimated": from tables or a roofline, not from a live engine.

    `weights` identifies the weights (a hash, or a published id and revision); `config_id` is the fingerprint of all that decides
    the engines' speed, by which an interrupted run knows its own points again. `noise` has a line for each sign that the machine
    was not quiet; empty: none was seen. `transport` is the one that T_kv means when nothing else is asked for.
    """

    model: str
    engine: str
    engine_version: str
    device: str
    block_size: int
    kv_bytes_per_token: int
    kv_capacity_tokens: int  # of the only theta, or the smallest one
    created: str  # ISO 8601
    kv_capacity_by_theta: dict[str, int] = {}
    weights: str | None = None
    dtype: str | None = None
    transport: str | None = None
    source: Literal["measured", "estimated"] = "measured"
    provenance: Provenance | None = None
    mode: str | None = None  # how it was measured: "quick", "full"
    config_id: str | None = None
    noise: list[str] = []
    notes: str = ""
