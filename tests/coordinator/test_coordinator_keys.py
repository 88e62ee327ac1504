from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampd.coordinator.keys import SessionKey, SessionKeys
from ampd.errors import RequestError

END = 2
KEYS = SessionKeys("g", ["agent_context.session_id"], derive=True)
text = st.lists(st.integers(3, 99), min_size=1, max_size=12)


def find(
    raw: dict[str, Any], token_ids: list[int] | None = None, tenant: str | None = None, keys: SessionKeys = KEYS
) -> SessionKey | None:
    return keys.find({"eos_token_ids": [END], **raw}, token_ids or [5, 6, 7], tenant)


def header(id: str | int, **more: Any) -> dict[str, Any]:
    return {"agent_context": {"session_id": id, **more}}


def chat(*messages: list[int]) -> list[int]:
    """A prompt as chat templates write it: every message closed, then the opening of the answer."""
    return [t for message in messages for t in [*message, END]] + [1, 1]


def test_a_key_shows_nothing_of_what_the_client_sent() -> None:
    key = find(header("alice@example.com", parent_session_id="bob"))
    assert key is not None
    assert len(key.id) == 32
    assert int(key.id, 16) >= 0
    assert key.parent == find(header("bob")).id  # type: ignore[union-attr]
    assert not key.derived


def test_keys_differ_by_session_tenant_and_graph() -> None:
    other = SessionKeys("h", ["agent_context.session_id"], derive=True)
    keys = [
        find(header("a")),
        find(header("b")),
        find(header("a"), tenant="t"),
        find(header("ta")),
        find(header("a"), keys=other),
    ]
    assert len({key.id for key in keys if key is not None}) == 5
    assert find(header("a")) == find(header(" a ")), "blanks around an id are the client's accident"


def test_the_first_source_with_a_value_wins() -> None:
    keys = SessionKeys("g", ["annotations.session", "user", "agent_context.session_id"], derive=False)
    sent: dict[str, Any] = {"annotations": ["other:1", "session:a:b"], "user": "u", **header("h")}
    assert find(sent, keys=keys) == find({"user": "a:b"}, keys=keys)
    assert find({**sent, "annotations": []}, keys=keys) == find({"user": "u"}, keys=keys)
    assert find(header("h"), keys=keys) == find({"user": "h"}, keys=keys)
    assert find({"user": 7}, keys=keys) == find({"user": "7"}, keys=keys)
    assert find({"user": {"not": "an id"}}, keys=keys) is None


@pytest.mark.parametrize("id", ["", "   ", None])
def test_an_empty_id_is_no_id(id: str | None) -> None:
    assert find({"agent_context": {"session_id": id}}) is None


def test_ids_are_bounded_in_bytes() -> None:
    assert find(header("é" * 128)) is not None
    with pytest.raises(RequestError, match=r"agent_context\.session_id has 258 bytes, a session id has at most 256"):
        find(header("é" * 129))


@given(st.booleans(), text, st.lists(st.tuples(text, text), min_size=1, max_size=6))
def test_a_derived_key_stays_the_same_through_a_conversation(
    system: bool, first: list[int], turns: list[tuple[list[int], list[int]]]
) -> None:
    messages = [[7, 7, 7]] * system + [first]
    key = find({}, chat(*messages))
    assert key is not None
    assert key.derived
    for assistant, user in turns:
        messages += [assistant, user]
        assert find({}, chat(*messages)) == key


@given(text, text)
def test_derived_keys_tell_first_user_messages_apart(a: list[int], b: list[int]) -> None:
    same_system = [7] * 200
    assert (find({}, chat(same_system, a)) == find({}, chat(same_system, b))) == (a == b)


def test_prompts_without_turns_have_no_derived_key() -> None:
    assert find({}, [5, 6, 7]) is None
    assert find({"eos_token_ids": []}, chat([5], [6])) is None
    assert find({}, chat([5], [6]), keys=SessionKeys("g", [], derive=False)) is None
