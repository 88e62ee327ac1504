"""Sessions known by their lengths: read from a file, turned into prompts."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ampd.bench.lengths import LengthRound, PromptMaker, load_sessions
from ampd.errors import ConfigError


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ":1: "),
        ('{"session": "a", "rounds": []}', ":1: a session needs rounds"),
        ('{"session": "a", "rounds": [{"prompt": 5, "history": 9, "output": 1}]}', "prompt >= history"),
        ('{"session": "a", "rounds": [{"prompt": 5, "history": 0, "output": 0}]}', "output >= 1"),
        ('{"session": "a", "rounds": [{"history": 0, "output": 2}]}', "missing required field `prompt`"),
        ("", "no sessions"),
    ],
)
def test_bad_files_are_refused_with_their_line(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "s.jsonl").write_text(line)
    with pytest.raises(ConfigError) as refused:
        load_sessions(tmp_path / "s.jsonl")
    assert words in str(refused.value)
    assert str(tmp_path / "s.jsonl") in str(refused.value)


def test_prompts_share_what_the_recording_shared(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text(
        '{"session": "a", "rounds": [{"prompt": 100, "history": 0, "increment": 100, "output": 10, "gap_s": 0}, '
        '{"prompt": 160, "history": 105, "increment": 55, "output": 4, "gap_s": 2.5}, {"prompt": 80, "history": 40, "output": 1}]}'
    )
    rounds = load_sessions(file)[0].rounds
    assert rounds[1] == LengthRound(160, 105, 4, 2.5)
    maker = PromptMaker(Random(1))
    first = maker.prompt(rounds[0])
    maker.answered([7] * 10)
    second = maker.prompt(rounds[1])
    third = maker.prompt(rounds[2])
    assert [len(first), len(second), len(third)] == [100, 160, 80]
    assert second[:105] == [*first, *[7] * 5]
    assert third[:40] == first[:40]
    assert third[40:] != second[40:80]


def test_lengths_are_divided() -> None:
    maker = PromptMaker(Random(1), divisor=16)
    assert len(maker.prompt(LengthRound(1600, 0, 5))) == 100
    assert len(maker.prompt(LengthRound(3200, 1600, 5))) == 200
    assert len(maker.prompt(LengthRound(3, 0, 5))) == 1
