from __future__ import annotations

import hashlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampd.ledger import DIGEST_SIZE, build, chain_at, extend, grow, match

tokens = st.lists(st.integers(0, 3), max_size=60)  # few values, so that prefixes often agree
blocks = st.integers(1, 7)


def same_prefix(a: list[int], b: list[int], block: int) -> int:
    """Brute force: whole blocks in which two sequences agree from the start."""
    n = 0
    while n + block <= min(len(a), len(b)) and a[: n + block] == b[: n + block]:
        n += block
    return n


@given(tokens, tokens, blocks)
def test_matching_is_the_common_prefix_in_whole_blocks(a: list[int], b: list[int], block: int) -> None:
    assert match(build(a, block), b, block).tokens == same_prefix(a, b, block)


@given(tokens, tokens, blocks)
def test_extending_equals_building_at_once(a: list[int], b: list[int], block: int) -> None:
    assert extend(build(a, block), a, b, block) == build(a + b, block)


@given(tokens, tokens, tokens, blocks)
def test_growing_a_match_equals_building_the_prompt(a: list[int], b: list[int], more: list[int], block: int) -> None:
    ledger = build(a, block)
    matched = match(ledger, b, block)
    assert grow(ledger, matched, [*b[matched.tokens :], *more], block) == build(b + more, block)
    assert grow(ledger, matched, b[matched.tokens :], block) == build(b, block), "a match can be grown from twice"


@given(tokens, tokens, blocks, st.integers(0, 60))
def test_chains_are_equal_exactly_where_prefixes_are(a: list[int], b: list[int], block: int, at: int) -> None:
    if at > min(len(a), len(b)):
        with pytest.raises(ValueError, match="says nothing"):
            chain_at(build(a[: at // block * block - 1], block) if at >= block else b"", max(at, block), block)
        return
    covered = at // block * block
    assert (chain_at(build(a, block), at, block) == chain_at(build(b, block), at, block)) == (a[:covered] == b[:covered])


@given(tokens, blocks)
def test_one_digest_a_full_block(a: list[int], block: int) -> None:
    ledger = build(a, block)
    assert len(ledger) == len(a) // block * DIGEST_SIZE
    assert chain_at(ledger, len(a), block) == ledger[-DIGEST_SIZE:].hex()


def test_large_ids_are_kept_apart() -> None:
    assert build([2**31], 1) != build([2**31 - 1], 1)
    with pytest.raises(OverflowError):
        build([2**32], 1)
    with pytest.raises(OverflowError):
        build([-1], 1)


class CountedHash:
    """SHA-256 that counts: how many bytes were hashed, and how many digests taken."""

    def __init__(self, counts: Counter[str], state: hashlib._Hash | None = None) -> None:
        self._counts = counts
        self._state = hashlib.sha256() if state is None else state

    def update(self, data: memoryview) -> None:
        self._counts["bytes"] += len(data)
        self._state.update(data)

    def digest(self) -> bytes:
        self._counts["digests"] += 1
        return self._state.digest()

    def copy(self) -> CountedHash:
        return CountedHash(self._counts, self._state.copy())


def test_a_long_prompt_is_compared_in_at_most_two_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = list(range(131_072))
    ledger = build(prompt, 32)
    counts: Counter[str] = Counter()
    monkeypatch.setattr("ampd.ledger.sha256", lambda: CountedHash(counts))
    assert match(ledger, prompt, 32).tokens == len(prompt)
    assert counts == {"bytes": 4 * len(prompt), "digests": 1}
    counts.clear()
    prompt[70_000] = 0
    assert match(ledger, prompt, 32).tokens == 69_984
    assert counts["bytes"] <= 2 * 4 * len(prompt)
    assert counts["digests"] <= 14  # 4,096 blocks, bisected
