"""The fence: a handle that differs from its pin in any field, or comes late, or comes twice, is refused."""

from __future__ import annotations

import msgspec
import pytest

from ampd.errors import KvFenceError
from ampd.ledger import build, chain_at
from ampd.messages import Handle
from ampd.workers.pins import PinTable

BLOCK = 4
TOKENS = list(range(100, 121))  # 5 full blocks and one token


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> PinTable:
    return PinTable(7, "epoch-1", BLOCK, clock)


def issue(table: PinTable, ref: str = "r1", session: str = "s1", tokens: int = 21, expires_at: float = 1300.0) -> Handle:
    return table.issue(f"round-{ref}", session, ref, tokens, build(TOKENS[:tokens], BLOCK), expires_at, {"port": 1})


def claim(table: PinTable, handle: Handle, tokens: int = 20, prompt: list[int] = TOKENS) -> None:
    table.claim(handle, tokens, chain_at(build(prompt, BLOCK), tokens, BLOCK))


def test_a_true_handle_is_claimed_once(table: PinTable) -> None:
    handle = issue(table)
    assert table.tokens == 21
    claim(table, handle)
    with pytest.raises(KvFenceError, match="claimed"):
        claim(table, handle)


def test_a_shorter_prefix_may_be_read(table: PinTable) -> None:
    claim(table, issue(table), tokens=8, prompt=[*TOKENS[:8], 1, 2, 3, 4])
    assert len(table) == 1


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"epoch": "epoch-0"}, "epoch"),
        ({"worker": 8}, "epoch"),
        ({"session": "s2"}, "session"),
        ({"chain": "00" * 16}, "prefix"),
        ({"tokens": 16}, "prefix"),
        ({"ref": "r9"}, "unknown"),
    ],
)
def test_any_differing_field_is_refused(table: PinTable, change: dict[str, object], cause: str) -> None:
    forged = msgspec.structs.replace(issue(table), **change)
    with pytest.raises(KvFenceError) as refusal:
        claim(table, forged)
    assert refusal.value.cause == cause


def test_an_expired_pin_is_refused_and_swept(table: PinTable, clock: Clock) -> None:
    handle = issue(table)
    clock.now = handle.expires_at
    with pytest.raises(KvFenceError, match="expired"):
        claim(table, handle)
    assert table.sweep(grace_s=30) == ["r1"]
    assert len(table) == 0


@pytest.mark.parametrize("tokens", [4, 8, 20])
def test_a_reader_whose_prompt_differs_is_refused(table: PinTable, tokens: int) -> None:
    handle = issue(table)
    with pytest.raises(KvFenceError, match="prefix"):
        claim(table, handle, tokens, [1, *TOKENS[1:]])
    with pytest.raises(KvFenceError, match="prefix"):
        table.check_local(handle, tokens, build([1, *TOKENS[1:]], BLOCK))


def test_more_tokens_than_pinned_are_refused(table: PinTable) -> None:
    handle = issue(table, tokens=8)
    with pytest.raises(KvFenceError, match="prefix"):
        claim(table, handle, tokens=12)


def test_a_claim_ends_by_grace_not_before(table: PinTable, clock: Clock) -> None:
    claim(table, issue(table))
    clock.now += 29
    assert table.sweep(grace_s=30) == []
    clock.now += 1
    assert table.sweep(grace_s=30) == ["r1"]


def test_memory_pressure_takes_the_oldest_unclaimed_of_other_sessions(table: PinTable) -> None:
    claimed = issue(table, "claimed", "a")
    claim(table, claimed)
    issue(table, "mine", "me")
    issue(table, "old", "b")
    issue(table, "new", "c")
    assert table.shed(1, keep="me") == ["old"]
    assert table.shed(1000, keep="me") == ["new"]
    assert table.tokens == 42


def test_another_sessions_handle_drops_nothing(table: PinTable) -> None:
    handle = issue(table)
    assert not table.drop(msgspec.structs.replace(handle, session="s2"))
    assert not table.drop(msgspec.structs.replace(handle, epoch="epoch-0"))
    assert table.drop(handle)
    assert not table.drop(handle)


def test_an_abandoned_round_leads_to_its_pin(table: PinTable) -> None:
    handle = issue(table)
    assert table.of_round("round-r1") == handle
    assert table.of_round("round-r2") is None
    table.drop(handle)
    assert table.of_round("round-r1") is None


def test_the_latest_free_pin_of_a_session_is_found(table: PinTable, clock: Clock) -> None:
    issue(table, "r1")
    latest = issue(table, "r2", tokens=13)
    issue(table, "r3", session="s2")
    found = table.of_session("s1")
    assert found is not None
    assert (found.handle, found.ledger) == (latest, build(TOKENS[:13], BLOCK))
    claim(table, latest, tokens=12)
    older = table.of_session("s1")
    assert older is not None
    assert older.handle.ref == "r1"
    clock.now = 1300.0
    assert table.of_session("s1") is None
    assert table.of_session("s9") is None
