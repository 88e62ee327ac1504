"""From `model.path` to a model folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from graphs import make_graph

from ampd.errors import SetupError
from ampd.launch import models
from ampd.launch.models import model_folder, resolve_model


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AMPD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_folder_of_the_users_own(model: Path) -> None:
    assert resolve_model(make_graph(model)) == model


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["tokenizer.json"], "has no config.json; give a Hugging Face model folder or one of 'demo'"),
        (["config.json"], "has no tokenizer"),
    ],
)
def test_incomplete_folder(tmp_path: Path, files: list[str], words: str) -> None:
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(SetupError, match=f"^model.path: {tmp_path} {words}"):
        resolve_model(make_graph(tmp_path))


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(
        SetupError, match=f"^model.path: {tmp_path / 'gone'} is no folder; give a model folder or one of 'demo', 'tiny'"
    ):
        resolve_model(make_graph(tmp_path / "gone"))


def test_built_in_model_is_made_once(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    users = tmp_path / "users-tmp"
    users.mkdir()
    monkeypatch.setenv("TMPDIR", str(users))
    graph = make_graph(Path("tiny"))
    heard: list[str] = []
    folder = resolve_model(graph, heard.append)
    assert folder == model_folder(graph)
    assert folder.is_relative_to(cache)
    assert json.loads((folder / "config.json").read_text())["model_type"]
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]
    made_at = folder.stat().st_mtime_ns
    assert resolve_model(graph, heard.append).stat().st_mtime_ns == made_at
    assert len(heard) == 1
    assert list(users.iterdir()) == [], "torch leaves its compiler's folder in TMPDIR"


def test_a_model_that_cannot_be_made_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(cache / "shadow"))
    (cache / "shadow" / "transformers").mkdir(parents=True)
    (cache / "users-tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(cache / "users-tmp"))
    code = "import tempfile; tempfile.mkdtemp(); raise ImportError('transformers is broken')"
    (cache / "shadow" / "transformers" / "__init__.py").write_text(code)
    with pytest.raises(SetupError, match=r"^model.path: model 'tiny' cannot be made: .*transformers is broken"):
        resolve_model(make_graph(Path("tiny")))
    assert list((cache / "models").iterdir()) == []
    assert list((cache / "users-tmp").iterdir()) == []


def test_whoever_is_first_wins(tmp_path: Path) -> None:
    first, second, folder = tmp_path / "first", tmp_path / "second", tmp_path / "folder"
    for made in (first, second):
        made.mkdir()
        (made / "config.json").write_text(made.name)
        models._publish(made, folder)
    assert (folder / "config.json").read_text() == "first"
    assert not second.exists()


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("AMPD_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert models.cache_dir() == tmp_path / "ampd"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert models.cache_dir() == tmp_path / ".cache" / "ampd"
