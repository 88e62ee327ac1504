"""How Dynamo's runtime is set up inside a Python process."""

from __future__ import annotations

import os

import pytest

from ampd.bridge import prepare_runtime

_WORKERS, _BLOCKING = "DYN_RUNTIME_NUM_WORKER_THREADS", "DYN_RUNTIME_MAX_BLOCKING_THREADS"


@pytest.mark.parametrize(("given", "expected"), [({}, ("1", "1")), ({_WORKERS: "4"}, ("4", "1")), ({_BLOCKING: "8"}, ("1", "8"))])
def test_what_the_user_has_set_stays(given: dict[str, str], expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (_WORKERS, _BLOCKING):
        monkeypatch.setenv(name, "")  # so that it is put back at the end
        monkeypatch.delenv(name)
    for name, text in given.items():
        monkeypatch.setenv(name, text)
    prepare_runtime()
    assert (os.environ[_WORKERS], os.environ[_BLOCKING]) == expected
