"""The Lua scripts by name."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

_LUA = Path(__file__).parent / "lua"
_NAMES = re.compile(r"^local (?:function )?(\w+(?:, \w+)*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Script:
    """`digest` is the SHA-1 by which Redis knows `text`."""

    digest: str
    text: str


def load_scripts() -> dict[str, Script]:
    """All scripts by name, what they use of the common part put before each."""
    common = (_LUA / "common.lua").read_text().split("\n\n")
    scripts = {}
    for path in sorted(_LUA.glob("*.lua")):
        if path.name != "common.lua":
            text = _with_used(common, path.read_text())
            scripts[path.stem] = Script(hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(), text)
    return scripts


def _with_used(paragraphs: list[str], script: str) -> str:
    """The script after the paragraphs that define names it mentions, or that those mention: later ones may use earlier ones."""
    for paragraph in reversed(paragraphs):
        names = [name for names in _NAMES.findall(paragraph) for name in names.split(", ")]
        if any(re.search(rf"\b{name}\b", script) for name in names):
            script = f"{paragraph}\n\n{script}"
    return script
