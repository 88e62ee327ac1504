"""A model whose every token depends on all tokens before it, and the graph it is served in."""

from __future__ import annotations

from typing import Any

from ampd.config import Graph, build_graph

BLOCK = 4
VOCAB = 50_000


def make_graph(**sections: Any) -> Graph:
    """A graph with blocks of 4 tokens and a context of 4,096."""
    base: dict[str, Any] = {
        "model": {"path": "unused", "block_size": BLOCK, "max_model_len": 4096},
        "transport": {"read_grace_s": 0.05},
        "coordinator": {"round_timeout_s": 20},
        "state": {"stale_after_s": 1000},
        "workers": [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}],
    }
    for name, values in sections.items():
        base[name] = {**base.get(name, {}), **values} if isinstance(values, dict) else values
    return build_graph(base)


def next_token(tokens: list[int]) -> int:
    """The model: a token that depends on every token before it."""
    value = len(tokens)
    for token in tokens:
        value = (value * 31 + token + 7) % 1_000_003
    return value % VOCAB


def answer_to(prompt: list[int], n: int) -> list[int]:
    """What a plain engine would say."""
    tokens = list(prompt)
    for _ in range(n):
        tokens.append(next_token(tokens))
    return tokens[len(prompt) :]
