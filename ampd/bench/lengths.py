"""Recorded sessions of which only the lengths are known: reading them, and making prompts of those lengths."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from random import Random

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


class LengthSession(msgspec.Struct, frozen=True):
    """The rounds of one session in their order."""

    session: str
    rounds: tuple[LengthRound, ...]


def load_sessions(path: Path) -> list[LengthSession]:
    """Read a JSONL file, one session a line. Raises ConfigError naming file and line."""
    decoder = msgspec.json.Decoder(LengthSession, strict=False)
    sessions = []
    try:
        lines = path.read_text().splitlines()
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}; give a JSONL file of sessions") from None
    for number, line in enumerate(lines, start=1):
        try:
            session = decoder.decode(line)
        except msgspec.MsgspecError as e:
            raise ConfigError(
                f"{path}:{number}: {e}; expected {{'session', 'rounds': [{{'prompt', 'history', 'output'}}]}}"
            ) from None
        if not session.rounds or any(r.prompt < 1 or not 0 <= r.history <= r.prompt or r.output < 1 for r in session.rounds):
            raise ConfigError(f"{path}:{number}: a session needs rounds with prompt >= history >= 0 and output >= 1")
        sessions.append(session)
    if not sessions:
        raise ConfigError(f"{path}: no sessions; give a JSONL file of sessions")
    return sessions


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
