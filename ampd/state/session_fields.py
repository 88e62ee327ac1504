"""A session as the fields of a Redis hash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ampd.messages import Handle
from ampd.state.base import Held, SessionRow

pack = msgspec.msgpack.Encoder().encode
unpack_handle = msgspec.msgpack.Decoder(Handle).decode
_unpack_held = msgspec.msgpack.Decoder(tuple[Held, ...]).decode

# What `bind` and `restore` answer with, in this order; the handle only if there is one to return.
_ANSWERED = (b"worker", b"epoch", b"round", b"version", b"tokens", b"derived", b"held", b"handle")


def pack_handle(row: SessionRow) -> bytes:
    """The row's handle; empty for none."""
    return b"" if row.handle is None else pack(row.handle)


def pack_held(row: SessionRow) -> bytes:
    """What prefill workers hold; empty keeps what is stored."""
    return pack(row.held) if row.held else b""


def read_hash(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """The answer of HGETALL; a field that is there twice has its later value."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def read_session(fields: Mapping[bytes, bytes]) -> SessionRow | None:
    """The row that a session's hash holds; None for no session."""
    if b"worker" not in fields:
        return None
    handle, held = fields.get(b"handle"), fields.get(b"held")
    return SessionRow(
        worker=int(fields[b"worker"]),
        epoch=fields[b"epoch"].decode(),
        round=int(fields.get(b"round", 0)),
        version=int(fields.get(b"version", 0)),
        tokens=int(fields.get(b"tokens", 0)),
        handle=None if handle is None else unpack_handle(handle),
        derived=fields.get(b"derived") == b"1",
        held=() if held is None else _unpack_held(held),
    )


def read_bound(values: Sequence[Any]) -> SessionRow:
    """The row of a session that is there for certain."""
    row = read_session({name: value for name, value in zip(_ANSWERED, values, strict=False) if value is not None})
    assert row is not None
    return row
