"""From pydantic's errors to one line that names the key, the value, where it came from, and the fix."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from ampd.config.schema import Graph

Location = tuple[int | str, ...]
_TOLD = 3


def one_line(error: ValidationError, sources: Mapping[Location, str]) -> str:
    """The first errors in one line. `sources` names the flag or variable of keys that do not come from the file."""
    details = error.errors(include_url=False)
    parts = [_explain(e) + _origin(e["loc"], sources) for e in details[:_TOLD]]
    more = len(details) - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def _explain(error: ErrorDetails) -> str:
    key = ".".join(str(k) for k in error["loc"]) or "graph"
    match error["type"]:
        case "extra_forbidden" | "invalid_key":
            return f"unknown key {key}{_suggest(error['loc'])}"
        case "missing":
            return f"{key} is required"
        case "value_error":
            return re.sub(r"^Value error, ", "", error["msg"])
        case "model_type" if error["input"] is None:
            return f"{key} is empty; give it keys, or remove the line"
        case "model_type":
            return f"{key} = {error['input']!r}: expected keys below it"
    return f"{key} = {error['input']!r}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _origin(location: Location, sources: Mapping[Location, str]) -> str:
    for assigned, source in sources.items():
        # A variable may set a whole section, or a key below an unknown one.
        shared = min(len(assigned), len(location))
        if shared and assigned[:shared] == location[:shared]:
            return f" (from {source})"
    return ""


def _suggest(location: Location) -> str:
    section: type[BaseModel] = Graph
    for key in location[:-1]:
        if isinstance(key, int):
            continue
        annotation: Any = section.model_fields[str(key)].annotation
        for candidate in (annotation, *getattr(annotation, "__args__", ())):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                section = candidate
    near = difflib.get_close_matches(str(location[-1]), section.model_fields, n=1)
    return f" (did you mean {near[0]}?)" if near else f" (known keys: {', '.join(section.model_fields)})"
