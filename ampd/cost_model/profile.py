"""profile.json: what was measured of an engine, the fits, and their errors."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Literal

import msgspec

from ampd.cost_model.functions import DecodeFit, MixedFit, PrefillFit, TransferFit
from ampd.cost_model.meta import Meta
from ampd.cost_model.piecewise import PiecewiseCostModel
from ampd.cost_model.points import Points
from ampd.errors import ProfileError

VERSION = 2
FORMAT: Literal["ampd-profile"] = "ampd-profile"
_LINE = 132
_AGAIN = "make it again with `ampd profile`"


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A profile of one model on one kind of engine, for one or more thetas.

    Without `complete` it is the points of an interrupted run: it has no fits, and only `ampd profile` reads it, to go on.
    """

    format: Literal["ampd-profile"] = FORMAT
    version: int = VERSION
    complete: bool = True
    meta: Meta
    t_pre: list[PrefillFit] = []
    t_dec: list[DecodeFit] = []
    t_mixed: list[MixedFit] = []
    t_kv: list[TransferFit] = []
    points: Points = Points()

    def __post_init__(self) -> None:
        for name in ("t_pre", "t_dec"):
            if self.complete and not getattr(self, name):
                raise ValueError(f"{name} must not be empty")

    @property
    def thetas(self) -> list[int]:
        """Those that T_pre and T_dec are known for."""
        return sorted({f.theta for f in self.t_pre} & {f.theta for f in self.t_dec})

    def cost_model(self, *, foreign: bool = False) -> PiecewiseCostModel:
        """The cost functions, ready to evaluate. `foreign`: a theta that has no fit is answered by the nearest one that has."""
        return PiecewiseCostModel(self.t_pre, self.t_dec, self.t_kv, self.t_mixed, transport=self.meta.transport, foreign=foreign)

    def mismatches(self, *, model: str, theta: int, block_size: int) -> list[str]:
        """Why the profile is not of this engine: a line for each of model, block size and theta that differs."""
        meta, found = self.meta, []
        if meta.model != model:
            found.append(f"the profile is of model {meta.model!r}, the engine serves {model!r}")
        if meta.block_size != block_size:
            found.append(f"the profile is of block size {meta.block_size}, the engine's is {block_size}")
        if theta not in self.thetas:
            found.append(f"the profile covers theta {self.thetas}, the engine runs theta {theta}")
        return found

    def check(self, *, model: str, theta: int, block_size: int, foreign: bool = False) -> None:
        """Raise ProfileError, in one line, unless the profile is of this model, theta and block size, or `foreign` ones will do."""
        found = self.mismatches(model=model, theta=theta, block_size=block_size)
        if found and not foreign:
            raise ProfileError(f"{'; '.join(found)}; {_AGAIN} for this engine, or set foreign_profile: true to take it as it is")


class _Header(msgspec.Struct):
    format: str = ""
    version: int = 0


def load_profile(path: str | Path, *, unfinished: bool = False) -> Profile:
    """Read and check a profile of this version or an older one; `unfinished`: also one of an interrupted run.

    Raises ProfileError in one line that says what to do.
    """
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
    if header.version < 1:
        raise ProfileError(f"profile {path}: version {header.version} does not exist; {_AGAIN}")
    if header.version > VERSION:
        raise ProfileError(
            f"profile {path}: version {header.version} is newer than this ampd reads ({VERSION}); upgrade ampd, or {_AGAIN}"
        )
    try:
        profile = msgspec.json.decode(raw, type=Profile)
    except msgspec.ValidationError as e:
        raise ProfileError(f"profile {path}: {e}; {_AGAIN}") from None
    if not (profile.complete or unfinished):
        raise ProfileError(f"profile {path}: its measurement was interrupted; the same `ampd profile` goes on from it")
    # Version 1 lacks what has a default here.
    return profile if profile.version == VERSION else msgspec.structs.replace(profile, version=VERSION)


def save_profile(profile: Profile, path: str | Path) -> None:
    """Write a profile, readable by people: a point a line. The file is never seen half written."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    part.write_bytes(_readable(msgspec.json.encode(profile)))
    os.replace(part, target)


def _readable(data: bytes) -> bytes:
    """Indented JSON with lists and objects on one line that have room there. No string holds a newline, so none is changed."""
    text = msgspec.json.format(data, indent=1)
    for innermost in (rb"\[[^][{}]*\]", rb"\{[^{}]*\}"):
        text = re.sub(innermost, _joined, text)
    return text + b"\n"


def _joined(found: re.Match[bytes]) -> bytes:
    line = re.sub(rb"(?<=[\[{])\n *|\n *(?=[\]}])", b"", found[0])
    line = re.sub(rb"\n *", b" ", line)
    return line if len(line) <= _LINE else found[0]
