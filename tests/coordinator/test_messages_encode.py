"""What goes over the request plane: one text a message, whichever codec the plane has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ampd.errors import WorkerError
from ampd.messages import DecodeRequest, Handle, KvReply, PrefillRequest, decode, encode, pack_params

HANDLE = Handle(1, "e", "s", "r", 64, "00", 5.0, pack_params({"port": 1}))
TIMES = {"estimate_s": 0.1, "elapsed_s": 0.2, "ttft_target_s": 2.0}
DECODE = {"path": "local", "request": {"n": 1}, "prefill": None, "keep": True, "prefill_worker": 7}


@pytest.mark.parametrize(
    "message",
    [
        PrefillRequest(id="i", session="s", round=2, token_ids=[1, 2, 3], l_hist=2, history=HANDLE, **TIMES),
        DecodeRequest(id="i", session="s", round=2, token_ids=[1, 2, 3], l_hist=2, history=HANDLE, **DECODE, **TIMES),
        DecodeRequest(id="i", session="s", round=2, token_ids=[], l_hist=0, history=None, **DECODE, **TIMES),
        KvReply(ok=True, handle=HANDLE, ledger=b"\x00\xff"),
    ],
    ids=lambda message: type(message).__name__,
)
@pytest.mark.parametrize("carried", [bytes, list], ids=["msgpack plane", "JSON plane"])
def test_a_message_arrives_as_it_was_sent(message: msgspec.Struct, carried: Callable[[bytes], Any]) -> None:
    assert decode(type(message), carried(encode(message))) == message


@pytest.mark.parametrize(
    "raw", [encode(KvReply(ok=True)), b"\xc1", {"id": "i"}, None], ids=["another", "broken", "tree", "nothing"]
)
def test_what_is_no_such_message_is_refused(raw: Any) -> None:
    with pytest.raises(WorkerError, match="malformed PrefillRequest.*same ampd version"):
        decode(PrefillRequest, raw)
