"""Contract of every StateStore: bindings, ledgers and handles of sessions."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from state_samples import BIG, SETTINGS, handle, worker

from ampd.state.base import Held, SessionRow, StateStore
from ampd.state.settings import StoreSettings


async def closed_round(store: StateStore, ref: str = "pin-1") -> SessionRow:
    """A session after its first round."""
    row = await store.bind("s", BIG, "e1", 100)
    row = replace(row, round=1, tokens=64, handle=handle(ref), derived=True)
    assert await store.close_round("s", row, b"ledger") is None
    return row


async def test_an_unknown_session_is_open_and_unbound(store: StateStore) -> None:
    await store.put_worker(worker())
    opened = await store.open_round("s")
    assert (opened.session, opened.ledger) == (None, b"")
    assert [w.id for w in opened.view.decode] == [BIG]
    assert await store.sessions() == 0


async def test_the_first_binding_wins(store: StateStore) -> None:
    rows = await asyncio.gather(*(store.bind("s", i, f"e{i}", 10) for i in range(1, 9)))
    assert len({(r.worker, r.epoch) for r in rows}) == 1
    assert len({r.version for r in rows}) == 8
    opened = await store.open_round("s")
    assert opened.session is not None
    assert opened.session.worker == rows[0].worker
    assert await store.sessions() == 1


async def test_only_a_dead_binding_is_replaced(store: StateStore) -> None:
    await closed_round(store)
    other = await store.bind("s", 2, "e2", 10, replace="not-e1")
    assert (other.worker, other.epoch, other.round) == (BIG, "e1", 1)
    moved = await store.bind("s", 2, "e2", 10, replace="e1")
    assert (moved.worker, moved.epoch, moved.round, moved.tokens, moved.handle) == (2, "e2", 1, 0, handle())
    again = await store.bind("s", 3, "e3", 10, replace="e1")
    assert (again.worker, again.epoch, again.handle) == (2, "e2", None)
    opened = await store.open_round("s")
    assert opened.session is not None
    assert (opened.session.handle, opened.ledger) == (None, b"")


async def test_a_round_finds_what_the_last_one_left_and_takes_the_handle(store: StateStore) -> None:
    closed = await closed_round(store)
    opened = await store.open_round("s")
    assert opened.session == replace(closed, version=opened.session.version if opened.session else -1)
    assert opened.ledger == b"ledger"
    second = await store.open_round("s")
    assert second.session is not None
    assert second.session.handle is None
    assert second.ledger == b"ledger"


async def test_of_many_openings_at_once_one_gets_the_handle(store: StateStore) -> None:
    await closed_round(store)
    opened = await asyncio.gather(*(store.open_round("s") for _ in range(20)))
    rows = [o.session for o in opened if o.session is not None]
    assert len(rows) == 20
    assert sum(r.handle is not None for r in rows) == 1
    assert len({r.version for r in rows}) == 20


async def test_the_later_opening_wins_whatever_the_order_of_closing(store: StateStore) -> None:
    await closed_round(store)
    first, second = [(await store.open_round("s")).session for _ in range(2)]
    assert first is not None
    assert second is not None
    assert await store.close_round("s", replace(first, round=2, handle=handle("early")), b"1") is None
    assert await store.close_round("s", replace(second, round=2, handle=handle("late")), b"2") == handle("early")
    third, fourth = [(await store.open_round("s")).session for _ in range(2)]
    assert third is not None
    assert fourth is not None
    assert third.handle == handle("late")
    assert await store.close_round("s", replace(fourth, round=3, handle=handle("new")), b"4") is None
    assert await store.close_round("s", replace(third, round=3, handle=handle("stale")), b"3") == handle("stale")
    opened = await store.open_round("s")
    assert opened.session is not None
    assert (opened.session.handle, opened.ledger) == (handle("new"), b"4")


async def test_closing_twice_releases_nothing(store: StateStore) -> None:
    row = await closed_round(store)
    assert await store.close_round("s", row, b"ledger") is None
    opened = await store.open_round("s")
    assert opened.session is not None
    assert opened.session.handle == row.handle


async def test_a_late_close_of_an_ended_session_does_not_touch_its_namesake(store: StateStore) -> None:
    old = await closed_round(store)
    for _ in range(50):
        old = replace(old, version=(await store.open_round("s")).session.version)  # type: ignore[union-attr]
    await store.end_session("s")
    row = await store.bind("s", BIG, "e1", 0)
    assert await store.close_round("s", replace(old, handle=handle("old")), b"old") == handle("old")
    assert await store.close_round("s", replace(row, round=1, handle=handle("new")), b"new") is None
    assert await store.close_round("s", replace(old, handle=handle("old")), b"old") == handle("old")
    found = await store.open_round("s")
    assert found.session is not None
    assert (found.session.handle, found.ledger) == (handle("new"), b"new")


async def test_a_lost_session_is_restored_and_goes_on_counting(store: StateStore) -> None:
    lost = SessionRow(worker=BIG, epoch="e1", round=5, version=50, tokens=64, handle=handle(), derived=True)
    stands = await store.restore("s", lost, b"ledger", 48)
    assert stands == replace(lost, handle=None)
    flying = replace(lost, version=49, round=6, handle=handle("flying"))
    assert await store.close_round("s", flying, b"flying") == handle()
    found = await store.open_round("s")
    assert found.session is not None
    assert found.session.version > 50
    assert (found.session.handle, found.session.round, found.ledger) == (handle("flying"), 6, b"flying")


async def test_restoring_changes_nothing_that_is_newer_or_of_another_binding(store: StateStore) -> None:
    row = await closed_round(store)
    older = replace(row, round=9, handle=handle("older"))
    await store.restore("s", older, b"older", row.version)
    stands = await store.restore("s", SessionRow(worker=2, epoch="e2", version=2**52), b"other", 2**52)
    assert (stands.worker, stands.epoch) == (BIG, "e1")
    found = await store.open_round("s")
    assert found.session is not None
    assert (found.session.round, found.session.handle, found.ledger) == (1, row.handle, b"ledger")
    await store.restore("s", replace(row, round=7, handle=handle("newer")), b"newer", row.version + 1)
    found = await store.open_round("s")
    assert found.session is not None
    assert (found.session.round, found.session.handle, found.ledger) == (7, handle("newer"), b"newer")


async def test_an_unused_handle_is_given_back(store: StateStore) -> None:
    row = await closed_round(store)
    opened = (await store.open_round("s")).session
    assert opened is not None
    assert await store.close_round("s", opened, None) is None
    again = await store.open_round("s")
    assert again.session is not None
    assert (again.session.handle, again.ledger) == (row.handle, b"ledger")


async def test_a_round_that_kept_nothing_leaves_handle_and_ledger(store: StateStore) -> None:
    row = await closed_round(store)
    late = await store.bind("s", BIG, "e1", 0)  # an opening that takes no handle
    assert await store.close_round("s", replace(late, round=2), None) is None
    opened = await store.open_round("s")
    assert opened.session is not None
    assert (opened.session.round, opened.session.handle, opened.ledger) == (2, row.handle, b"ledger")


async def test_a_new_ledger_without_handle_frees_the_old_handle(store: StateStore) -> None:
    row = await closed_round(store)
    late = await store.bind("s", BIG, "e1", 0)
    assert await store.close_round("s", replace(late, round=2), b"other") == row.handle
    opened = await store.open_round("s")
    assert opened.session is not None
    assert (opened.session.handle, opened.ledger) == (None, b"other")


@pytest.mark.parametrize("what", ["ended", "rebound"])
async def test_a_close_that_comes_too_late_gets_its_own_handle_back(store: StateStore, what: str) -> None:
    await closed_round(store)
    opened = (await store.open_round("s")).session
    assert opened is not None
    if what == "ended":
        await store.end_session("s")
    else:
        await store.bind("s", 2, "e2", 0, replace="e1")
    assert await store.close_round("s", replace(opened, handle=handle("mine")), b"x") == handle("mine")
    again = await store.open_round("s")
    assert again.session is None if what == "ended" else again.session is not None and again.session.handle is None


async def test_ending_returns_the_row_once(store: StateStore) -> None:
    row = await closed_round(store)
    ended = await store.end_session("s")
    assert ended is not None
    assert ended.handle == row.handle
    assert await store.end_session("s") is None
    assert await store.sessions() == 0
    assert (await store.open_round("s")).session is None


async def test_an_idle_session_expires_and_a_used_one_does_not(make_store: Callable[[StoreSettings], StateStore]) -> None:
    store = make_store(dataclasses.replace(SETTINGS, idle_ttl_s=0.8))
    await store.connect()
    await store.bind("idle", 1, "e", 0)
    await store.bind("used", 1, "e", 0)
    for _ in range(4):
        await asyncio.sleep(0.3)
        await store.open_round("used")
    assert (await store.open_round("idle")).session is None
    assert (await store.open_round("used")).session is not None
    assert await store.sessions() == 1


async def test_what_prefill_workers_hold_is_kept_until_something_newer_is_known(store: StateStore) -> None:
    first, second = (Held(BIG - 1, "p1", 64, 2**40), Held(7, "p2", 32, 5)), (Held(8, "p3", 96, 6),)
    row = await closed_round(store)
    opened = (await store.open_round("s")).session
    assert opened is not None
    assert opened.held == ()
    await store.close_round("s", replace(opened, held=first), None)
    opened = (await store.open_round("s")).session
    assert opened is not None
    assert opened.held == first
    await store.close_round("s", replace(opened, held=()), b"ledger")
    again = await store.bind("s", 2, "e2", 10, replace=row.epoch)  # the decode worker died, those caches did not
    assert again.held == first
    await store.close_round("s", replace(again, held=second), b"other")
    opened = (await store.open_round("s")).session
    assert opened is not None
    assert opened.held == second
    ended = await store.end_session("s")
    assert ended is not None
    assert ended.held == second
    await store.restore("s", ended, b"other", ended.version)
    opened = (await store.open_round("s")).session
    assert opened is not None
    assert opened.held == second


async def test_a_ledger_the_caller_has_is_used_only_while_it_is_the_stored_one(store: StateStore) -> None:
    ledger, longer = bytes(range(32)), bytes(range(48))
    row = replace(await store.bind("s", BIG, "e1", 0), round=1)
    await store.close_round("s", row, ledger)
    assert (await store.open_round("s", ledger)).ledger == ledger
    opened = (await store.open_round("s", ledger)).session
    assert opened is not None
    await store.close_round("s", opened, longer)
    assert (await store.open_round("s", ledger)).ledger == longer
    await store.bind("s", 2, "e2", 0, replace="e1")
    assert (await store.open_round("s", longer)).ledger == b""
    assert (await store.open_round("nobody", longer)).ledger == b""
