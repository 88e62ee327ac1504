"""Samples survive any end of a run, and belong to one set of engines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ampd.errors import ProfileError, SetupError
from ampd.profiler.identity import Identity
from ampd.profiler.journal import kept_samples, open_journal
from ampd.profiler.spots import Spot
from ampd.workers.engines.base import EngineInfo

ONE, TWO = Spot("prefill", (0, 64)), Spot("history", (512,))
IDENTITY = Identity("m", "sha256:1", "vllm 1", {"dtype": "float32", "block_size": 32}, {"cores": ["0"]}, {"cores": ["1"]}, "cpu")
INFO = EngineInfo(
    engine="vllm", version="1", model="m", block_size=32, kv_total=100, max_model_len=64, theta=1, kv_bytes_per_token=1
)


def _write(path: Path) -> None:
    with open_journal(path, IDENTITY, fresh=False) as journal:
        journal.add(ONE, 0.5)
        journal.state(INFO, replace(INFO, kv_total=200), lambda: ["loud"])
        journal.state(INFO, INFO, lambda: ["too soon"])
        journal.add(ONE, 0.6)
        journal.add(TWO, 0.1)


def test_a_second_run_has_the_samples_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "p.json.partial"
    _write(path)
    assert kept_samples(path) == 3
    with open_journal(path, IDENTITY, fresh=False) as journal:
        assert journal.samples == {ONE: [0.5, 0.6], TWO: [0.1]}
        (state,) = journal.states.values()
        assert state.noise == ["loud"]
        assert state.prefill == INFO
        assert state.decode.kv_total == 200
        journal.remove()
    assert kept_samples(path) == 0
    assert not path.exists()


def test_cut_anywhere_it_resumes_with_the_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "p.partial"
    _write(path)
    whole = path.read_bytes()
    for length in range(len(whole) + 1):
        path.write_bytes(whole[:length])
        lines = whole[:length].count(b"\n")
        with open_journal(path, IDENTITY, fresh=False) as journal:
            assert sum(map(len, journal.samples.values())) + len(journal.states) == max(0, lines - 1)
            journal.add(TWO, 9.0)
        with open_journal(path, IDENTITY, fresh=False) as journal:
            assert journal.samples[TWO][-1] == 9.0


def test_fresh_forgets(tmp_path: Path) -> None:
    path = tmp_path / "p.partial"
    _write(path)
    with open_journal(path, IDENTITY, fresh=True) as journal:
        assert not journal.samples
    assert kept_samples(path) == 0


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"model": "n"}, "model 'm', not 'n'"),
        ({"weights": "sha256:2"}, "weights"),
        ({"settings": {"dtype": "bfloat16", "block_size": 32}}, "settings.dtype 'float32', not 'bfloat16'"),
        ({"decode": {"cores": ["0"]}}, "decode.cores"),
        ({"machine": "gpu"}, "machine"),
        ({"engine": "vllm 2"}, "engine 'vllm 1', not 'vllm 2'"),
    ],
)
def test_samples_of_other_engines_are_refused(tmp_path: Path, other: dict[str, object], says: str) -> None:
    path = tmp_path / "p.partial"
    _write(path)
    before = path.read_bytes()
    with (
        pytest.raises(ProfileError, match="--fresh") as error,
        open_journal(path, msgspec.structs.replace(IDENTITY, **other), fresh=False),
    ):
        pass
    assert says in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert path.read_bytes() == before


@pytest.mark.parametrize("text", ["hello\n", "hello", '{"format": "ampd-profile"}\n', "[]\n", '{"identity": 5}\n'])
def test_another_file_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "p.partial"
    path.write_text(text)
    with pytest.raises(ProfileError, match="--fresh"), open_journal(path, IDENTITY, fresh=False):
        pass
    assert path.read_text() == text


def test_a_damaged_line_is_an_error_not_a_loss(tmp_path: Path) -> None:
    path = tmp_path / "p.partial"
    _write(path)
    path.write_bytes(path.read_bytes().replace(b'"seconds":0.6', b'"seconds":?'))
    with pytest.raises(ProfileError, match="damaged"), open_journal(path, IDENTITY, fresh=False):
        pass


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "p.partial"
    with (
        open_journal(path, IDENTITY, fresh=False),
        pytest.raises(SetupError, match="another `ampd profile`"),
        open_journal(path, IDENTITY, fresh=False),
    ):
        pass
