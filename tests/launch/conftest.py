from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from graphs import stand_in_plan

from ampd.launch import running


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that passes for a model: nothing loads it here."""
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    return folder


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Where stand-ins write their names, in the order in which they stop."""
    return tmp_path / "notes"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which run folders are made, short enough for unix sockets; pytest's own are elsewhere."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch, notes: Path) -> Callable[..., None]:
    """Call it with flags by process name: graphs then run stand-ins for all processes but Redis."""

    def use(**flags: list[str]) -> None:
        by_name = {name.replace("_", "-"): values for name, values in flags.items()}
        monkeypatch.setattr(running, "plan", stand_in_plan(notes, by_name))

    return use
