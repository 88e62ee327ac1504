"""How Dynamo's runtime is set up inside a Python process."""

from __future__ import annotations

import os

import pytest

from ampd.bridge import prepare_runtime

_THREADS = "DYN_RUNTIME_NUM_WORKER_THREADS"


@pytest.mark.parametrize(("given", "expected"), [(None, "1"), ("4", "4")])
def test_what_the_user_has_set_stays(given: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_THREADS, given or "")  # so that it is put back at the end
    if given is None:
        monkeypatch.delenv(_THREADS)
    prepare_runtime()
    assert os.environ[_THREADS] == expected
