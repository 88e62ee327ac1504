"""What the tests about outages share."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from msgspec.structs import replace
from state_samples import BIG, SETTINGS, handle

from ampd.state.base import SessionRow
from ampd.state.resilient import ResilientStore

QUICK = dataclasses.replace(SETTINGS, deadline_s=1.0, stale_after_s=1.5, reap_after_s=60.0)


async def back(store: ResilientStore) -> None:
    for _ in range(500):
        if not store.away:
            return
        await asyncio.sleep(0.02)
    pytest.fail("the store stayed away")


async def opened(store: ResilientStore, session: str = "s") -> SessionRow:
    row = (await store.open_round(session)).session
    assert row is not None
    return row


async def first_round(store: ResilientStore, session: str = "s", ref: str = "pin-1") -> SessionRow:
    await store.open_round(session)
    row = replace(await store.bind(session, BIG, "e1", 10), round=1, handle=handle(ref))
    assert await store.close_round(session, row, b"ledger-1") is None
    return row
