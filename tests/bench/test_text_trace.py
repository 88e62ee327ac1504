from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from ampd.bench.text_trace import fit_session, load_text_sessions, load_tokenizer
from ampd.errors import ConfigError, SetupError


def _write(folder: Path, rows: list[object], name: str = "a.jsonl") -> Path:
    (folder / name).write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows) + "\n")
    return folder


def _row(session: str, t_us: int, text: str) -> dict[str, object]:
    return {"session": session, "t_us": t_us, "input": text, "output": ""}


def test_sessions_are_grouped_and_ordered_by_time(tmp_path: Path) -> None:
    _write(tmp_path, [_row("b", 20, "b2"), _row("a", 5, "a1"), _row("b", 10, "b1")])
    _write(tmp_path, [_row("a", 7, "a2")], "b.jsonl")
    loaded = {s.name: s.prompts for s in load_text_sessions(tmp_path)}
    assert loaded == {"b": ("b1", "b2"), "a": ("a1", "a2")}
    assert [(s.name, s.prompts) for s in load_text_sessions(tmp_path, sessions=1, rounds=1)] == [("b", ("b1",))]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("{", "a.jsonl:2: not JSON"),
        ([1], "a.jsonl:2: expected an object, got list"),
        ({"t_us": 1, "input": "x"}, "a.jsonl:2: session = 'None'"),
        ({"session": "s", "t_us": "now", "input": "x"}, "a.jsonl:2: t_us = 'now': expected microseconds"),
        ({"session": "s", "t_us": 1, "input": ["x"]}, "a.jsonl:2: input ="),
        ({"session": "s", "t_us": 1, "input": ""}, "a.jsonl:2: input is empty"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, row: object, said: str) -> None:
    _write(tmp_path, [_row("s", 0, "fine"), row])
    with pytest.raises(ConfigError, match="^" + said.replace("[", r"\[")):
        load_text_sessions(tmp_path)


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no \*\.jsonl files"):
        load_text_sessions(tmp_path)


def test_a_model_without_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_prompts_that_fit_are_left_alone(tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    fitted = fit_session(["one line\n", "one line\ntwo lines\n"], tokenizer, 100)
    assert [f.text for f in fitted] == ["one line\n", "one line\ntwo lines\n"]
    assert [f.cut for f in fitted] == [0, 0]
    assert fitted[1].token_ids == list(tokenizer.encode(fitted[1].text).ids)


def test_long_prompts_are_cut_at_the_head_and_still_extend(tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    whole = "".join(f"line {i}: some words of a session that grows\n" for i in range(200))
    lines = whole.splitlines(keepends=True)
    prompts = ["".join(lines[:n]) for n in range(20, 201, 4)]
    limit = 600
    fitted = fit_session(prompts, tokenizer, limit)
    assert all(len(f.token_ids) <= limit for f in fitted)
    assert all(p.endswith(f.text) and f.text.startswith("line") for p, f in zip(prompts, fitted, strict=True))
    assert all((f.cut > 0) == (f.text != p) for p, f in zip(prompts, fitted, strict=True))
    extends = [b.text.startswith(a.text) for a, b in itertools.pairwise(fitted)]
    cuts = extends.count(False)
    assert 1 <= cuts <= 12  # each cut frees half the context, so cuts are few


def test_a_recording_that_starts_over_is_whole_again(tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    fitted = fit_session(["a line of text\n" * 400, "fresh start"], tokenizer, 300)
    assert fitted[0].cut > 0
    assert (fitted[1].text, fitted[1].cut) == ("fresh start", 0)


def test_text_without_newlines_is_cut_too(tokenizer_folder: Path) -> None:
    tokenizer = load_tokenizer(tokenizer_folder)
    (fitted,) = fit_session(["word " * 3000], tokenizer, 200)
    assert 0 < len(fitted.token_ids) <= 200
