"""profile.json: what was measured of an engine, the fits, and their errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from ampd.cost_model.functions import DecodeFit, PrefillFit, TransferFit
from ampd.cost_model.piecewise import PiecewiseCostModel
from ampd.errors import ProfileError
from ampd.policy.types import Direction

VERSION = 1
FORMAT: Literal["ampd-profile"] = "ampd-profile"
_AGAIN = "make it again with `ampd profile`"


class PrefillPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measured prefill."""

    l_hist: int
    l_incr: int
    seconds: float
    theta: int = 1


class DecodePoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measured decode step; `context` counts the KV tokens of the whole batch."""

    batch: int
    context: int
    seconds: float
    theta: int = 1


class KvPoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measured transfer."""

    tokens: int
    direction: Direction
    seconds: float
    theta_src: int = 1
    theta_dst: int = 1


class Points(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Raw measurements."""

    prefill: list[PrefillPoint] = []
    decode: list[DecodePoint] = []
    kv: list[KvPoint] = []


class Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the figures belong to. `source` "estimated": from published tables or a roofline, not from a live engine."""

    model: str
    engine: str
    engine_version: str
    device: str
    block_size: int
    kv_bytes_per_token: int
    kv_capacity_tokens: int
    created: str  # ISO 8601
    transport: str | None = None
    source: Literal["measured", "estimated"] = "measured"
    notes: str = ""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A profile of one model on one kind of engine, for one or more thetas."""

    format: Literal["ampd-profile"] = FORMAT
    version: int = VERSION
    meta: Meta
    t_pre: list[PrefillFit]
    t_dec: list[DecodeFit]
    t_kv: list[TransferFit]
    points: Points = Points()

    def cost_model(self) -> PiecewiseCostModel:
        """The cost functions, ready to evaluate."""
        return PiecewiseCostModel(self.t_pre, self.t_dec, self.t_kv)

    def check(self, *, model: str, theta: int, block_size: int) -> None:
        """Raise ProfileError unless the profile is of this model, theta and block size."""
        if self.meta.model != model:
            raise ProfileError(f"the profile is of model {self.meta.model!r}, the engine serves {model!r}; {_AGAIN} for this model")
        if self.meta.block_size != block_size:
            raise ProfileError(f"the profile is of block size {self.meta.block_size}, the engine's is {block_size}; {_AGAIN}")
        known = sorted({f.theta for f in self.t_pre} & {f.theta for f in self.t_dec})
        if theta not in known:
            raise ProfileError(f"the profile covers theta {known}, the engine runs theta {theta}; {_AGAIN} for theta {theta}")


class _Header(msgspec.Struct):
    format: str = ""
    version: int = 0


def load_profile(path: str | Path) -> Profile:
    """Read and check a profile. Raises ProfileError in one line that says what to do."""
    try:
        raw = Path(path).read_bytes()
    except FileNotFoundError:
        raise ProfileError(f"profile {path}: no such file; {_AGAIN}, or leave the key `profile` out") from None
    except OSError as e:
        raise ProfileError(f"profile {path}: cannot be read: {e.strerror}") from None
    try:
        header = msgspec.json.decode(raw, type=_Header)
    except msgspec.ValidationError:
        header = _Header()
    except msgspec.DecodeError as e:
        raise ProfileError(f"profile {path}: not valid JSON, perhaps truncated ({e}); {_AGAIN}") from None
    if header.format != FORMAT:
        raise ProfileError(f"profile {path}: not an ampd profile (format {header.format!r}, expected {FORMAT!r}); {_AGAIN}")
    if header.version > VERSION:
        raise ProfileError(
            f"profile {path}: version {header.version} is newer than this ampd reads ({VERSION}); upgrade ampd, or {_AGAIN}"
        )
    try:
        return msgspec.json.decode(raw, type=Profile)
    except msgspec.ValidationError as e:
        raise ProfileError(f"profile {path}: {e}; {_AGAIN}") from None


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile, readable by people; the file is never seen half written."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    part.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=1) + b"\n")
    os.replace(part, target)
