"""What goes over the request plane: builtins, with the token ids of a long prompt as they are."""

from __future__ import annotations

import msgspec
import pytest

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
def test_a_message_arrives_as_it_was_sent(message: msgspec.Struct) -> None:
    sent = encode(message)
    assert sent == msgspec.to_builtins(message)
    assert decode(type(message), sent) == message


def test_token_ids_are_not_copied() -> None:
    tokens = list(range(1000))
    message = PrefillRequest(id="i", session="s", round=1, token_ids=tokens, l_hist=0, history=None, **TIMES)
    assert encode(message)["token_ids"] is tokens
