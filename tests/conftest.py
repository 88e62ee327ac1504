"""What tests of several parts share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampd.launch.random_model import build_random_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder for correctness: random weights, real architecture and tokenizer."""
    return build_random_model(tmp_path_factory.mktemp("models") / "tiny")
