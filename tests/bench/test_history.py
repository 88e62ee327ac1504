from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ampd.bench.history import shared_prefix, true_history

TOKENS = st.lists(st.integers(0, 3), max_size=40)


@given(TOKENS, TOKENS)
def test_shared_prefix_is_the_longest(a: list[int], b: list[int]) -> None:
    n = shared_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


def test_extension_keeps_whole_blocks_only() -> None:
    previous, generated = list(range(100)), [900, 901, 902]
    assert true_history(previous, generated, [*previous, 500, 501], 32) == 96
    assert true_history(previous, generated, [*previous, 900, 901, 902, 5], 32) == 96


def test_the_last_generated_token_has_no_kv() -> None:
    previous, generated = list(range(62)), [900, 901]
    longer = [*previous, 900, 901, 902]
    assert true_history(previous, generated, longer, 32) == 32  # 63 tokens of KV: one block
    assert true_history(previous, [*generated, 902], [*longer, 1], 32) == 64


def test_the_last_prompt_token_is_computed_anew() -> None:
    previous = list(range(64))
    assert true_history(previous, [7], previous, 32) == 32
    assert true_history(previous, [7], [*previous, 1], 32) == 64


def test_an_edit_ends_the_history() -> None:
    previous = list(range(100))
    edited = [*previous[:40], 999, *previous[41:], 5]
    assert true_history(previous, [7], edited, 32) == 32
    assert true_history(previous, [7], [1, *previous], 32) == 0
