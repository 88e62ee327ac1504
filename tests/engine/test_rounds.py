"""Whatever the paths of a session's rounds, its greedy tokens are those of a plain vLLM engine."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from engine_pair import Pair, Session
from plain_engine import SESSIONS, TOKENS

PATHS = list(itertools.product(("local", "remote"), repeat=5))  # every order of three consecutive rounds is among them


def _name(paths: tuple[str, ...]) -> str:
    return "".join(path[0] for path in paths)


async def play(pair: Pair, name: str, paths: tuple[str, ...], clear: bool = False) -> list[list[int]]:
    session = Session(pair)
    answers = []
    for path, increment in zip(paths, SESSIONS[name], strict=True):
        if clear:
            await pair.prefill.reset_prefix_cache()
        tokens, _, _ = await session.round(path, increment, TOKENS)
        answers.append(tokens)
    await session.close()
    return answers


@pytest.mark.parametrize("cache", ["kept", "cleared"])
@pytest.mark.parametrize("name", SESSIONS)
@pytest.mark.parametrize("paths", PATHS, ids=_name)
async def test_tokens_equal_a_plain_engine(
    pair: Pair, reference: dict[str, list[list[int]]], paths: tuple[str, ...], name: str, cache: str
) -> None:
    assert await play(pair, name, paths, clear=cache == "cleared") == reference[name]


async def test_tokens_equal_with_many_sessions_at_once(pair: Pair, reference: dict[str, list[list[int]]]) -> None:
    chosen = [(name, paths) for name in SESSIONS for paths in PATHS[5::7]]
    answers = await asyncio.gather(*(play(pair, name, paths) for name, paths in chosen))
    assert answers == [reference[name] for name, _ in chosen]


def test_the_reference_depends_on_its_context(reference: dict[str, list[list[int]]]) -> None:
    """Else equality would say nothing: a model that ignores its prompt gives equal tokens whatever KV it reads."""
    first_tokens = [answer[0] for answers in reference.values() for answer in answers]
    assert len(set(first_tokens)) >= 8
