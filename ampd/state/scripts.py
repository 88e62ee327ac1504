"""The Lua scripts by name."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

_LUA = Path(__file__).parent / "lua"


@dataclass(frozen=True, slots=True)
class Script:
    """`digest` is the SHA-1 by which Redis knows `text`."""

    digest: str
    text: str


def load_scripts() -> dict[str, Script]:
    """All scripts by name, the common part put before each."""
    common = (_LUA / "common.lua").read_text()
    scripts = {}
    for path in sorted(_LUA.glob("*.lua")):
        if path.name != "common.lua":
            text = f"{common}\n{path.read_text()}"
            scripts[path.stem] = Script(hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), text)
    return scripts
