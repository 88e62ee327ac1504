"""One place to measure a cost function at, and its name in files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from ampd.errors import ProfileError

Kind = Literal["prefill", "decode", "mixed", "history", "increment"]

# Tokens that every sequence of a decode measurement gives, the first one not counted.
DECODE_STEPS = 16
# Fresh prompts that join the batch one after the other in a mixed measurement, and the batch's tokens before and between them.
MIXED_PROMPTS = 3
MIXED_LEAD = 3
_ARGS: dict[Kind, int] = {"prefill": 2, "decode": 2, "mixed": 3, "history": 1, "increment": 1}


@dataclass(frozen=True, slots=True, order=True)
class Spot:
    """`args` in tokens and sequences: prefill (l_hist, l_incr); decode (batch, context of each sequence at its start); mixed
    (batch, context of each, chunk); history and increment, the two directions of T_kv, (tokens,).
    """

    kind: Kind
    args: tuple[int, ...]

    @property
    def name(self) -> str:
        """For example `prefill/512/64`."""
        return "/".join([self.kind, *map(str, self.args)])

    @classmethod
    def parse(cls, name: str) -> Spot:
        """The inverse of `name`. Raises ProfileError."""
        kind, *rest = name.split("/")
        for known in get_args(Kind):
            if kind == known and len(rest) == _ARGS[known] and all(part.isdecimal() for part in rest):
                return cls(known, tuple(map(int, rest)))
        raise ProfileError(f"{name!r} names no point of a profile; expected for example 'prefill/512/64'")

    @property
    def point(self) -> tuple[int, ...]:
        """The arguments of the cost function, which takes the context of a whole batch, on average over the measured steps."""
        if self.kind == "decode":
            batch, context = self.args
            return batch, batch * (context + DECODE_STEPS // 2)
        if self.kind == "mixed":
            batch, context, chunk = self.args
            return batch, batch * (context + MIXED_LEAD * (MIXED_PROMPTS + 1) // 2), chunk
        return self.args
