"""Recorded sessions of which only the lengths are known: reading them, and making prompts of those lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Protocol

import msgspec

from ampd.errors import ConfigError

# Ordinary words in every vocabulary; the first few hundred ids may be special.
_TOKENS = range(300, 1500)


class LengthRound(msgspec.Struct, frozen=True):
    """One round, in tokens. `history` leading tokens are shared with the round before; `gap_s` seconds lie between the two."""

    prompt: int
    history: int
    output: int
    gap_s: float = 0.0
    tool: str = ""  # what ran in the gap, where the recording says


class LengthSession(msgspec.Struct, frozen=True):
    """The rounds of one session in their order."""

    session: str
    rounds: tuple[LengthRound, ...]
    arrives_s: float | None = None


class AnyRound(Protocol):
    """What every kind of recorded round has."""

    @property
    def prompt(self) -> int: ...
    @property
    def history(self) -> int: ...
    @property
    def output(self) -> int: ...
    @property
    def gap_s(self) -> float: ...


def load_sessions(path: Path) -> list[LengthSession]:
    """Read a JSONL file, one session a line. Raises ConfigError naming file, line and field."""
    decoder = msgspec.json.Decoder(LengthSession, strict=False)
    sessions = []
    for number, line in enumerate(read_lines(path), start=1):
        try:
            session = decoder.decode(line)
        except msgspec.MsgspecError as e:
            raise ConfigError(
                f"{path}:{number}: {e}; expected {{'session', 'rounds': [{{'prompt', 'history', 'output'}}]}}"
            ) from None
        check_rounds(f"{path}:{number}", session.rounds)
        sessions.append(session)
    if not sessions:
        raise ConfigError(f"{path}: no sessions; give a JSONL file of sessions")
    return sessions


def read_lines(path: Path) -> list[str]:
    """Of a text file. Raises ConfigError if it cannot be read."""
    try:
        return path.read_text().splitlines()
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}; give a JSONL file of sessions") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is no text; give a JSONL file of sessions") from None


def check_rounds(place: str, rounds: Sequence[AnyRound]) -> None:
    """Raises ConfigError for lengths that no session can have; `place` is where they stand, file and line."""
    if not rounds:
        raise ConfigError(f"{place}: a session needs rounds, and `rounds` is empty")
    left = 0  # tokens that the round before has left
    for i, r in enumerate(rounds):
        if r.prompt < 1 or r.output < 1 or not 0 <= r.history <= min(r.prompt, left) or not r.gap_s >= 0:
            field, fix = _what_is_wrong(r, left)
            raise ConfigError(f"{place}: rounds[{i}].{field}: {getattr(r, field)}; {fix}")
        left = r.prompt + r.output


def _what_is_wrong(r: AnyRound, left: int) -> tuple[str, str]:
    """The field, and what it should be."""
    if r.prompt < 1:
        return "prompt", "a prompt has at least 1 token"
    if r.output < 1:
        return "output", "output >= 1: an answer has at least 1 token"
    if not r.gap_s >= 0:
        return "gap_s", "give the seconds from the end of the round before, 0 or more"
    if not 0 <= r.history <= r.prompt:
        return "history", f"prompt >= history >= 0 is needed, and the prompt has {r.prompt}"
    before = f"the round before has left {left}" if left else "nothing comes before a first round"
    return "history", f"{before}: give {left} or less"


@dataclass(slots=True)
class PromptMaker:
    """The growing context of one session: made-up tokens of its own over the recorded lengths, divided by `divisor`."""

    rng: Random
    divisor: float = 1.0
    tokens: list[int] = field(default_factory=list)

    def prompt(self, round: LengthRound) -> list[int]:
        """The next prompt: as much of the context as the round shares with it, then new tokens."""
        shared = self.tokens[: int(round.history / self.divisor)]
        new = max(1, int(round.prompt / self.divisor) - len(shared))
        self.tokens = [*shared, *self.rng.choices(_TOKENS, k=new)]
        return self.tokens

    def answered(self, token_ids: list[int]) -> None:
        """The answer's tokens are context from now on."""
        self.tokens = [*self.tokens, *token_ids]
