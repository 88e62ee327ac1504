"""A script call whose fixed parts are written out once, for the call that every decision makes."""

from __future__ import annotations

from collections.abc import Sequence

from ampd.state.connection import Arg, pack
from ampd.state.scripts import Script


class Template:
    """EVALSHA of `script` with keys `keys` and then as many of each call as `own_keys`, arguments of each call, and then `args`."""

    __slots__ = ("_by_digest", "_by_text", "_count", "_end")

    def __init__(self, script: Script, keys: Sequence[Arg], own_keys: int, own_args: int, args: Sequence[Arg]) -> None:
        self._count = own_keys + own_args
        size = 3 + len(keys) + self._count + len(args)
        start = _parts((len(keys) + own_keys, *keys))
        self._by_digest = b"*%d\r\n%b%b" % (size, _parts(("EVALSHA", script.digest)), start)
        self._by_text = b"*%d\r\n%b%b" % (size, _parts(("EVAL", script.text)), start)
        self._end = _parts(args)

    def fill(self, values: Sequence[bytes], text: bool = False) -> bytes:
        """The call with its own keys and arguments; `text` sends the script along, to a Redis that has forgotten it."""
        assert len(values) == self._count
        parts = [self._by_text if text else self._by_digest]
        parts += [b"$%d\r\n%b\r\n" % (len(value), value) for value in values]
        parts.append(self._end)
        return b"".join(parts)


def _parts(values: Sequence[Arg]) -> bytes:
    """Values as Redis's protocol writes them within a command."""
    return pack(tuple(values)).partition(b"\r\n")[2]
