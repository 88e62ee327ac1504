"""Where aiconfigurator-core keeps its data. It is not imported here: reading a YAML of it needs none of its dependencies."""

from __future__ import annotations

from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

NAME = "aiconfigurator-core"
INSTALL = "pip install 'ampd[silicon]'"


def data_folder() -> Path | None:
    """The installed package's folder, with `systems/` and `model_configs/`; None when the extra is not installed."""
    spec = find_spec("aiconfigurator_core")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def installed_version() -> str:
    """Of the installed package."""
    return version(NAME)
