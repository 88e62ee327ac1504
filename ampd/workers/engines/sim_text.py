"""What the simulated engine "computes": tokens that depend on every token before them, and on the KV that they are computed from.

The KV of a full block is stood for by a digest of all tokens up to its end, the ledger's. A block computed after wrong KV has
another digest, and other tokens are sampled from it: an answer is right only if every read was of the right KV.
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

from ampd.ledger import DIGEST_SIZE

_WORD = re.compile(r"[Ġ▁][a-z]+")
_MASK = (1 << 61) - 1
# An answer that may end by itself does so after this many tokens on average.
_MEAN_ANSWER = 256


@cache
def words(folder: Path) -> Sequence[int]:
    """Ids of a tokenizer's whole words with their leading space, which survive being made text and tokens again.

    Ids from 256 on when the folder has no tokenizer.json, or one without such words.
    """
    try:
        vocabulary = json.loads((folder / "tokenizer.json").read_bytes())["model"]["vocab"]
    except (OSError, KeyError, ValueError):
        vocabulary = {}
    found = sorted(id for token, id in vocabulary.items() if _WORD.fullmatch(token)) if isinstance(vocabulary, dict) else []
    return found or list(range(256, 2048))


class Chain:
    """A growing token sequence and the ledger digests of its full blocks."""

    def __init__(self, tokens: Sequence[int], block_size: int) -> None:
        self.tokens = list(tokens)
        self._block_size = block_size
        self._state = sha256()
        self._digests: list[bytes] = []
        self._close_blocks()

    def append(self, token: int) -> None:
        """One token more."""
        self.tokens.append(token)
        if len(self.tokens) % self._block_size == 0:
            self._close_blocks()

    @property
    def digests(self) -> Sequence[bytes]:
        """One digest for each full block, as `ampd.ledger` makes them (on little-endian machines)."""
        return self._digests

    def content(self, block: int, before: bytes) -> bytes:
        """What the KV of a full block is when it is computed after a block with the content `before` (b"" for the first)."""
        if before == (self._digests[block - 1] if block else b""):
            return self._digests[block]
        own = self.tokens[block * self._block_size : (block + 1) * self._block_size]
        return sha256(before + array("I", own).tobytes()).digest()[:DIGEST_SIZE]

    def _close_blocks(self) -> None:
        size, known = self._block_size, len(self._digests)
        data = memoryview(array("I", self.tokens[known * size :]).tobytes())
        step = 4 * size
        for start in range(0, len(data) - step + 1, step):
            self._state.update(data[start : start + step])
            self._digests.append(self._state.copy().digest()[:DIGEST_SIZE])


class Author:
    """Picks tokens. `content` is the last full block's, `tail` the tokens after it; `choice` tells a request's choices apart."""

    def __init__(self, words: Sequence[int], content: bytes, tail: Sequence[int], choice: int = 0) -> None:
        self._words = words
        self._choice = choice
        self.restart(content)
        for token in tail:
            self.read(token)

    def restart(self, content: bytes) -> None:
        """A block has been filled; `content` stands for everything so far."""
        self._state = int.from_bytes(content[:7]) + 1 + self._choice

    def read(self, token: int) -> None:
        """The sequence goes on with `token`."""
        self._state = (self._state * 6364136223846793005 + token + 1442695040888963407) & _MASK

    def next(self, eos: Sequence[int]) -> int:
        """The next token; one of `eos` at the sequence's natural end. Does not read it."""
        drawn = self._state >> 13
        if eos and drawn % _MEAN_ANSWER == 0:
            return eos[0]
        return self._words[drawn // _MEAN_ANSWER % len(self._words)]
