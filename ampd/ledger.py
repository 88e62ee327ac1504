"""The ledger of a session: what its tokens were, as one short hash at the end of each full KV block.

The hash at block k is SHA-256, cut to 128 bits, over the token ids of the first k blocks (little-endian uint32). So each one fixes
the whole prefix: a prompt that extends its ledger is recognised in a single pass, and one that departs from it in two.
Coordinators measure history with it and workers fence their pins with it.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

DIGEST_SIZE = 16
_TOKEN_BYTES = 4


class Match(NamedTuple):
    """How many leading tokens of a prompt a ledger vouches for, and the hash over them, from which `grow` goes on."""

    tokens: int
    state: hashlib._Hash


def build(token_ids: Sequence[int], block_size: int) -> bytes:
    """The ledger of `token_ids`: one digest of DIGEST_SIZE bytes for each full block of `block_size` tokens."""
    return measure(token_ids, block_size)[0]


def measure(token_ids: Sequence[int], block_size: int) -> tuple[bytes, Match]:
    """The ledger of `token_ids`, and all of it as a match, from which `grow` goes on with the tokens after its last full block."""
    state = sha256()
    ledger = b"".join(_digests(state, token_ids, block_size))
    return ledger, Match(len(ledger) // DIGEST_SIZE * block_size, state)


def extend(ledger: bytes, covered: Sequence[int], more: Sequence[int], block_size: int) -> bytes:
    """The ledger of `covered + more`, where `ledger` is that of `covered`. Digests already known are kept, not computed again."""
    known = len(ledger) // DIGEST_SIZE * block_size
    state = sha256(_pack(covered)[: known * _TOKEN_BYTES])
    return grow(ledger, Match(known, state), [*covered[known:], *more], block_size)


def grow(ledger: bytes, match: Match, more: Sequence[int], block_size: int) -> bytes:
    """The ledger of the matched tokens and `more`, the tokens after them. Costs what `more` costs, whatever is before it."""
    known = ledger[: match.tokens // block_size * DIGEST_SIZE]
    return b"".join((known, *_digests(match.state.copy(), more, block_size)))


def _digests(state: hashlib._Hash, token_ids: Sequence[int], block_size: int) -> Iterator[bytes]:
    """One digest for each full block of `token_ids`; `state` has seen what comes before, and then these blocks too."""
    data = _pack(token_ids)
    step = block_size * _TOKEN_BYTES
    for start in range(0, len(data) - step + 1, step):
        state.update(data[start : start + step])
        yield state.digest()[:DIGEST_SIZE]


def match(ledger: bytes, token_ids: Sequence[int], block_size: int) -> Match:
    """The leading tokens of `token_ids` that are those of the ledger, in whole blocks."""
    blocks = min(len(ledger) // DIGEST_SIZE, len(token_ids) // block_size)
    tokens = blocks * block_size
    # A copy of the list is cheaper than packing ids that nothing asks for, if there are enough of them.
    data = _pack(token_ids if len(token_ids) - tokens < tokens // 4 else token_ids[:tokens])
    step = block_size * _TOKEN_BYTES
    # Bisect, with the whole ledger as the first guess: a session that only grew is settled by it.
    low, high, guess = 0, blocks, blocks
    state = sha256()
    while low < high:
        probe = state.copy()
        probe.update(data[low * step : guess * step])
        if probe.digest()[:DIGEST_SIZE] == ledger[(guess - 1) * DIGEST_SIZE : guess * DIGEST_SIZE]:
            low, state = guess, probe
        else:
            high = guess - 1
        guess = (low + high + 1) // 2
    return Match(low * block_size, state)


def chain_at(ledger: bytes, tokens: int, block_size: int) -> str:
    """The hex hash at the end of the last full block within the first `tokens` tokens; "" when there is none.

    Raises ValueError when the ledger does not reach that far.
    """
    end = tokens // block_size * DIGEST_SIZE
    if end > len(ledger):
        raise ValueError(f"a ledger of {len(ledger) // DIGEST_SIZE} blocks says nothing of token {tokens}")
    return ledger[max(0, end - DIGEST_SIZE) : end].hex()


def _pack(token_ids: Sequence[int]) -> memoryview:
    """Token ids as little-endian uint32. Raises OverflowError on an id that is none."""
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return memoryview(packed).cast("B")
