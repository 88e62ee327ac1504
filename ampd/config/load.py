"""Reading a graph: file, then AMPD_* variables, then `key=value` settings."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ampd.config.explain import Location, one_line
from ampd.config.schema import BUILT_IN_MODELS, Graph
from ampd.errors import ConfigError

_PREFIX = "AMPD_"
# Variables with the prefix that are not configuration keys.
_RESERVED = {"AMPD_CACHE_DIR", "AMPD_LOG"}


def load_graph(path: str | Path, sets: Sequence[str] = (), environ: Mapping[str, str] | None = None) -> Graph:
    """Read a graph file and lay AMPD_* variables and `key=value` settings over it.

    The file's relative paths are relative to the file, those of variables and settings to the current folder.
    Raises ConfigError, one line that names the key, the value and the fix.
    """
    return load_sources(path, sets, environ)[0]


def load_sources(
    path: str | Path, sets: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> tuple[Graph, dict[Location, str]]:
    """As `load_graph`, and where each key that is not a default comes from; of two that hold for a key the later counts."""
    data = _read_yaml(Path(path))
    _anchor(data, Path(path).absolute().parent)
    sources: dict[Location, str] = {}
    for name, text in config_variables(os.environ if environ is None else environ).items():
        source = f"variable {name}"
        sources[_assign(data, name[len(_PREFIX) :].lower().split("__"), text, source)] = source
    for item in sets:
        key, sep, text = item.partition("=")
        if not sep or not key:
            raise ConfigError(f"--set {item!r}: expected key=value, for example --set targets.ttft_s=1.5")
        source = f"--set {key}"
        sources[_assign(data, key.strip().split("."), text, source)] = source
    graph = build_graph(data, str(path), sources)
    return graph, {place: "file" for place in _places(data) if place not in sources} | sources


def _places(data: Any, place: Location = ()) -> Iterator[Location]:
    """The places of all values below `data`, an empty section or list being a value."""
    below = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    if not below:
        yield place
    for key, value in below:
        yield from _places(value, (*place, key))


def config_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that stand for configuration keys."""
    return {name: text for name, text in sorted(environ.items()) if name.startswith(_PREFIX) and name not in _RESERVED}


def build_graph(data: Mapping[str, Any], where: str = "configuration", sources: Mapping[Location, str] | None = None) -> Graph:
    """Validate plain data. `sources` tells where keys come from that `where` does not hold. Raises ConfigError."""
    try:
        return Graph.model_validate(data)
    except ValidationError as e:
        raise ConfigError(f"{where}: {one_line(e, sources or {})}") from None


def dump_graph(graph: Graph) -> str:
    """The graph as YAML with every effective value."""
    return yaml.safe_dump(graph.model_dump(mode="json"), sort_keys=False)


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice: YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value} is there twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text(), _Loader)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; start from configs/local-cpu.yaml") from None
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path}: cannot be read: {e}") from None
    except yaml.YAMLError as e:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(e).split())}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping of keys, got {type(data).__name__}; start from configs/local-cpu.yaml")
    return data


def _anchor(data: dict[str, Any], folder: Path) -> None:
    """Make the file's relative paths relative to the file, so that a graph can be served from any folder."""
    if isinstance(data.get("profile"), str):
        data["profile"] = str(folder / data["profile"])
    model = data.get("model")
    if isinstance(model, dict) and isinstance(model.get("path"), str) and model["path"] not in BUILT_IN_MODELS:
        model["path"] = str(folder / model["path"])


def _assign(data: dict[str, Any], keys: list[str], text: str, source: str) -> Location:
    """Set a nested value and return its place; numbers index lists.

    The text is read as YAML, so `true`, `1.5` and `[a, b]` mean what they say.
    """
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"{source}: {text!r} is not valid YAML; put it in quotes if it is a text") from None
    node: Any = data
    place: list[int | str] = []
    for i, key in enumerate(keys):
        place.append(_index(node, keys[: i + 1], source))
        if i == len(keys) - 1:
            node[place[-1]] = value
        elif isinstance(node, dict):
            if node.get(key) is None:
                node[key] = {}
            node = node[key]
        else:
            node = node[place[-1]]
    return tuple(place)


def _index(node: Any, keys: list[str], source: str) -> int | str:
    """The last of `keys` as an index of `node`. Raises ConfigError when it cannot be one."""
    if isinstance(node, dict):
        return keys[-1]
    if not isinstance(node, list):
        raise ConfigError(f"{source}: {'.'.join(keys[:-1])} is a single value, it has no key {keys[-1]!r}")
    if not keys[-1].isdigit() or int(keys[-1]) >= len(node):
        raise ConfigError(f"{source}: {'.'.join(keys)} is no entry of the list of {len(node)}, counted from 0")
    return int(keys[-1])
