"""What Coordinators and workers say to each other over Dynamo's request plane.

Plain msgspec structs. The plane carries each as one msgpack text, `encode`d here and checked by `decode` on arrival: bytes
pass Dynamo's bridge as they are, where every field of a tree of Python objects would be rebuilt on either side.
Times are durations in seconds unless a name says otherwise; tokens are counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeVar

import msgspec

from ampd.errors import WorkerError
from ampd.policy.types import Path as Path
from ampd.policy.types import Role as Role

pack_params = msgspec.msgpack.Encoder().encode  # for Handle.params
_unpack_params = msgspec.msgpack.Decoder(dict[str, Any]).decode


class Handle(msgspec.Struct, frozen=True):
    """A fenced, single-use, expiring reference to KV that a worker holds pinned.

    `chain` is the ledger's chain hash (hex) over the first `tokens // block_size` full blocks, so it fixes every token the
    handle vouches for. `ref` is the engine's own name of the pin and `params` its transfer parameters, packed: they name every
    block, and only the worker that reads the KV has a use for them, not the Coordinators and stores that a handle passes through.
    """

    worker: int
    epoch: str
    session: str
    ref: str
    tokens: int
    chain: str
    expires_at: float  # unix seconds on the owner's clock
    params: bytes

    def source(self) -> dict[str, Any]:
        """The transfer parameters. Raises WorkerError when a peer packed them in another way."""
        try:
            return _unpack_params(self.params)
        except msgspec.DecodeError as e:
            raise WorkerError(f"malformed transfer parameters of session {self.session} from a peer: {e}") from e


class PrefillRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A remote prefill: compute `token_ids`, reading the leading `l_hist` tokens' KV through `history` when its turn comes."""

    id: str
    session: str
    round: int
    token_ids: list[int]
    l_hist: int
    history: Handle | None
    estimate_s: float
    elapsed_s: float  # since the round's arrival at the Coordinator
    ttft_target_s: float
    priority: int = 0
    cache_salt: str | None = None
    trace: dict[str, str] | None = None


class PrefillResult(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a remote prefill. `handle` pins the whole prompt's KV on the prefill worker until read, released or expired."""

    handle: Handle
    queue_s: float
    read_s: float
    prefill_s: float
    read_tokens: int  # history tokens whose KV was read from the decode worker
    cached_tokens: int  # tokens found in the prefill worker's own prefix cache
    recompute: str | None = None  # why the history handle was not used, if it was not
    kv_written: int = 0  # the worker's `kv_written` after this prefill; see WorkerView


class DecodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A round on its bound decode worker.

    `request` is Dynamo's preprocessed request (sampling_options, stop_conditions, output_options, ...), unchanged.
    `prefill` is the prefill worker's handle for a remote round, None for a local one.
    `history` is the session's older handle. A remote round releases it at once, its prefill worker has read it; a local round
    releases it when it ends well, so that a cancelled one leaves the session its history.
    `keep` asks for a pin and a new handle at the end.
    """

    id: str
    session: str
    round: int
    path: Path
    token_ids: list[int]
    l_hist: int
    request: dict[str, Any]
    prefill: Handle | None
    history: Handle | None
    keep: bool
    prefill_worker: int  # whose windowed TTFT this round counts towards
    estimate_s: float
    elapsed_s: float
    ttft_target_s: float
    itl_target_s: float | None = None  # None: the graph's
    priority: int = 0
    trace: dict[str, str] | None = None


class RoundStats(msgspec.Struct, frozen=True, kw_only=True):
    """What the decode worker measured of one round; sent with the last chunk."""

    ttft_s: float  # from arrival at the Coordinator to the first token leaving the decode worker
    itl_s: float  # mean over the round's tokens after the first; 0.0 with fewer than two
    tokens_out: int
    queue_s: float
    read_s: float
    read_tokens: int  # increment tokens whose KV was read from the prefill worker
    cached_tokens: int  # prompt tokens found in the decode worker's own prefix cache
    history_tokens: int = 0  # local only: history tokens that were really still held
    recompute: str | None = None


class DecodeChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of a round's answer. `output` is in Dynamo's engine-output form and goes to the frontend as it is.

    The last chunk carries `stats`, and `handle` if the worker kept the session's KV: it vouches for the prompt and the
    generated tokens whose KV exists (all but the last). `refused` says why the engine cannot serve the request as written:
    it is then the only chunk.
    """

    output: dict[str, Any]
    stats: RoundStats | None = None
    handle: Handle | None = None
    refused: str | None = None


class KvRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asked of the worker that holds a pin.

    `claim`: the caller is about to read the first `tokens` tokens of it, and its own prompt's chain hash there is `chain`. The
    worker checks epoch, session, expiry, both chains and that nobody claimed it before, and from then on keeps the pin until
    the read ends or a grace does. `release`: nobody will read it any more; a claimed pin is kept for the grace, since a
    transfer may still be under way. `abandon`: the caller stopped round `id` and will never learn which pin it left. `finish`:
    nobody reads round `id`'s tokens any more; end its decoding now, as if at max_tokens, and keep the session's KV. `find`: the
    state store does not know `session`, do you? Answered with its latest pin's handle and ledger.
    """

    op: Literal["claim", "release", "abandon", "finish", "find"]
    handle: Handle | None = None
    id: str = ""
    tokens: int = 0
    chain: str = ""
    session: str = ""


class KvReply(msgspec.Struct, frozen=True, kw_only=True):
    """`ok` False carries the reason in `cause`: epoch, session, prefix, expired, claimed or unknown."""

    ok: bool
    cause: str | None = None
    handle: Handle | None = None
    ledger: bytes = b""


T = TypeVar("T", bound=msgspec.Struct)

encode = msgspec.msgpack.Encoder().encode  # a message in the form that the request plane carries


@cache
def _decoder(kind: type[T]) -> Callable[[bytes], T]:
    return msgspec.msgpack.Decoder(kind).decode


def decode(kind: type[T], raw: Any) -> T:
    """Check and build a message. Raises WorkerError naming the field when a peer speaks another version."""
    try:
        message: T = _decoder(kind)(bytes(raw) if isinstance(raw, list) else raw)  # a plane that speaks JSON makes it numbers
    except (msgspec.DecodeError, TypeError, ValueError) as e:
        raise WorkerError(f"malformed {kind.__name__} from a peer: {e}; do all components run the same ampd version?") from e
    return message
