"""From `model.path` to a model folder, made and cached first if ampd makes that model itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from ampd.config import BUILT_IN_MODELS, Graph
from ampd.errors import SetupError

# Part of the cache folder's name: raise it when a built-in model is made differently.
RECIPE = 1
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json")
_NAMES = {"demo": "smollm2-135m-instruct", "tiny": "random-tiny", "small": "random-small"}


def cache_dir() -> Path:
    """Where ampd keeps what it can make again: AMPD_CACHE_DIR, else the user's cache folder."""
    if chosen := os.environ.get("AMPD_CACHE_DIR"):
        return Path(chosen).absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ampd"


def model_folder(graph: Graph) -> Path:
    """The folder of the graph's model, whether it is there yet or not."""
    name = graph.model.path
    return cache_dir() / "models" / f"{_NAMES[name]}-{RECIPE}" if name in BUILT_IN_MODELS else Path(name).absolute()


def check_model(graph: Graph) -> None:
    """Raise SetupError when the graph's model is a folder without a model. A built-in one may still have to be made."""
    if graph.model.path not in BUILT_IN_MODELS:
        _check_folder(model_folder(graph))


def resolve_model(graph: Graph, note: Callable[[str], None] = lambda text: None) -> Path:
    """The folder of the graph's model, complete. `note` hears of work that takes long (the demo model: once, about 30 s).

    Raises SetupError when the folder is no model, or a built-in model cannot be made.
    """
    check_model(graph)
    folder = model_folder(graph)
    name = graph.model.path
    if name in BUILT_IN_MODELS and not folder.is_dir():
        note(f"preparing model '{name}' in {folder} (once)")
        _make(name, folder)
    return folder


def _check_folder(folder: Path) -> None:
    known = ", ".join(f"'{name}'" for name in BUILT_IN_MODELS)
    if not folder.is_dir():
        raise SetupError(f"model.path: {folder} is no folder; give a model folder or one of {known}")
    if not (folder / "config.json").is_file():
        raise SetupError(f"model.path: {folder} has no config.json; give a Hugging Face model folder or one of {known}")
    if not any((folder / file).is_file() for file in _TOKENIZERS):
        raise SetupError(f"model.path: {folder} has no tokenizer (tokenizer.json); save the model's tokenizer there")


def _make(name: str, folder: Path) -> None:
    """Make a built-in model in a process of its own: torch's memory ends with it. The folder appears complete or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as temporary:
        made = Path(temporary) / "model"
        # torch leaves its compiler's cache folder in TMPDIR.
        scratch = Path(temporary) / "tmp"
        scratch.mkdir()
        command = [sys.executable, "-P", "-m", "ampd.launch.make_model", name, str(made)]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        if done.returncode:
            lines = done.stdout.strip().splitlines() or [f"exit code {done.returncode}"]
            raise SetupError(f"model.path: model '{name}' cannot be made: {lines[-1]}")
        _publish(made, folder)


def _publish(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError:
        # Another process was first; its model is as good.
        if not folder.is_dir():
            raise
        shutil.rmtree(made)
