"""A session as the fields of a Redis hash."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ampd.ledger import DIGEST_SIZE
from ampd.messages import Handle
from ampd.state.base import Held, SessionRow

pack = msgspec.msgpack.Encoder().encode
unpack_handle = msgspec.msgpack.Decoder(Handle).decode
_unpack_held = msgspec.msgpack.Decoder(tuple[Held, ...]).decode


def pack_handle(row: SessionRow) -> bytes:
    """The row's handle; empty for none."""
    return b"" if row.handle is None else pack(row.handle)


def pack_held(row: SessionRow) -> bytes:
    """What prefill workers hold; empty keeps what is stored."""
    return pack(row.held) if row.held else b""


def tail_of(ledger: bytes) -> bytes:
    """What stands for a ledger: its last chain hash."""
    return ledger[-DIGEST_SIZE:]


def read_session(values: Sequence[Any]) -> SessionRow | None:
    """The row in the answer of a script (`SESSION` in lua/common.lua); None for no session."""
    worker, epoch, number, version, tokens, derived, held, handle = values[:8]
    if worker is None:
        return None
    return SessionRow(
        worker=int(worker),
        epoch=epoch.decode(),
        round=int(number or 0),
        version=int(version or 0),
        tokens=int(tokens or 0),
        handle=None if handle is None else unpack_handle(handle),
        derived=derived == b"1",
        held=() if held is None else _unpack_held(held),
    )


def read_bound(values: Sequence[Any]) -> SessionRow:
    """The row of a session that is there for certain."""
    row = read_session(values)
    assert row is not None
    return row


def read_binding(fields: Sequence[bytes]) -> tuple[str, SessionRow]:
    """An entry of the stream of bindings: s, w, e and v by name."""
    _, session, _, worker, _, epoch, _, version = fields
    return session.decode(), SessionRow(worker=int(worker), epoch=epoch.decode(), version=int(version))


def stream_id(text: bytes) -> tuple[int, int]:
    """A stream's entry id, by which entries are ordered."""
    milliseconds, _, number = text.partition(b"-")
    return int(milliseconds), int(number)
