"""Recorded agent sessions with full text: JSONL files of rows `{"session", "t_us", "input", "output"}`, one row a round.

The inputs are replayed as recorded, so what a round shares with the one before is a property of the recording, not of the
model that answers. The recorded output is not used: the model under test gives its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ampd.errors import ConfigError, SetupError


@dataclass(frozen=True, slots=True)
class TextSession:
    """One session's prompts in order of time."""

    name: str
    prompts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FittedPrompt:
    """A prompt that fits the context. `cut` counts the tokens taken from its head (0: whole)."""

    text: str
    token_ids: list[int]
    cut: int = 0


class Encoding(Protocol):
    """What is used of a tokenizer's answer: ids, and each token's characters as [begin, end)."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def offsets(self) -> list[tuple[int, int]]: ...


class Tokenizer(Protocol):
    """The part of `tokenizers.Tokenizer` that is used."""

    def encode(self, sequence: str, /) -> Encoding: ...


def load_tokenizer(model: Path) -> Tokenizer:
    """The tokenizer of a model folder. Raises SetupError naming what is missing."""
    file = model / "tokenizer.json"
    if not file.is_file():
        raise SetupError(f"{file}: no such file; the model folder needs a tokenizer.json")
    try:
        from tokenizers import Tokenizer as Tokenizers
    except ImportError:
        raise SetupError("the package 'tokenizers' is not installed; run make setup, or pip install tokenizers") from None
    tokenizer: Tokenizer = Tokenizers.from_file(str(file))
    return tokenizer


def load_text_sessions(folder: Path, *, sessions: int | None = None, rounds: int | None = None) -> list[TextSession]:
    """Read every `*.jsonl` of a folder; the first `sessions` sessions, the first `rounds` rounds of each.

    Raises ConfigError naming file, line and field.
    """
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise ConfigError(f"{folder}: no *.jsonl files; expected rows like " + '{"session": ..., "t_us": ..., "input": ...}')
    rows: dict[str, list[tuple[int, str]]] = {}
    for file in files:
        for number, line in enumerate(file.read_text().splitlines(), start=1):
            if line.strip():
                name, when, text = _row(line, f"{file.name}:{number}")
                rows.setdefault(name, []).append((when, text))
    chosen = list(rows.items())[:sessions]
    return [TextSession(name, tuple(text for _, text in sorted(turns, key=lambda t: t[0])[:rounds])) for name, turns in chosen]


def _row(line: str, where: str) -> tuple[str, int, str]:
    try:
        row: Any = json.loads(line)
    except ValueError as e:
        raise ConfigError(f"{where}: not JSON: {e}") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: expected an object, got {type(row).__name__}")
    for key, kind, wanted in (("session", str, "a text"), ("t_us", int, "microseconds"), ("input", str, "a text")):
        if not isinstance(row.get(key), kind):
            raise ConfigError(f"{where}: {key} = {str(row.get(key))[:60]!r}: expected {wanted}")
    if not row["input"]:
        raise ConfigError(f"{where}: input is empty; a round needs a prompt")
    return row["session"], row["t_us"], row["input"]


def fit_session(prompts: Sequence[str], tokenizer: Tokenizer, limit: int) -> list[FittedPrompt]:
    """Cut prompts longer than `limit` tokens as an agent's client would: drop lines from the head until half the limit is left,
    then go on from that place, so that later rounds still extend earlier ones.
    """
    fitted: list[FittedPrompt] = []
    begin = 0  # characters dropped from the head so far in this session
    for prompt in prompts:
        if begin >= len(prompt):  # the recording itself started over
            begin = 0
        encoding = tokenizer.encode(prompt[begin:])
        while len(encoding.ids) > limit:
            begin += _cut(prompt[begin:], encoding, max(1, limit // 2))
            encoding = tokenizer.encode(prompt[begin:])
        cut = len(tokenizer.encode(prompt).ids) - len(encoding.ids) if begin else 0
        fitted.append(FittedPrompt(prompt[begin:], list(encoding.ids), cut))
    return fitted


def _cut(text: str, encoding: Encoding, keep: int) -> int:
    """How many characters to drop so that about `keep` tokens are left, moved on to the start of a line if one is near."""
    at = max(1, encoding.offsets[len(encoding.ids) - keep][0])
    newline = text.find("\n", at, at + 400)
    return newline + 1 if newline >= 0 and newline + 1 < len(text) else at
