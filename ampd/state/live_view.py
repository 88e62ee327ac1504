"""The cluster as Redis last told it, brought up to date by what has changed since.

A decision costs in proportion to the workers that have changed since this process's last one, not to all of them: rows are decoded
only if their bytes are new, views of unchanged workers are used again, and silent workers are found in the order of heartbeats.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from ampd.policy.types import ClusterView, WorkerView
from ampd.state.base import SCHEMA, WorkerRow
from ampd.state.rows import Stats, worker_view

log = logging.getLogger(__name__)

_row = msgspec.msgpack.Decoder(WorkerRow).decode
_stats = msgspec.msgpack.Decoder(Stats).decode


class _Known(NamedTuple):
    packed_row: bytes
    packed_stats: bytes
    row: WorkerRow
    at: float
    view: WorkerView


class LiveView:
    """`generation` and `seq` say up to which change it is; scripts take them and answer with what is newer.

    Replies must be given in the order in which Redis made them.
    """

    def __init__(self, stale_after_s: float, reap_after_s: float) -> None:
        self.generation, self.seq = b"", b"0"
        self._stale_after_s, self._reap_after_s = stale_after_s, reap_after_s
        self._known: dict[bytes, _Known] = {}
        self._beats: dict[bytes, float] = {}  # time of the last heartbeat, oldest first, of those not known to be silent
        self._silent: dict[bytes, float] = {}
        self._live: dict[str, dict[bytes, WorkerView]] = {"prefill": {}, "decode": {}}
        self._view = ClusterView()
        self._now = 0.0

    def update(self, reply: Sequence[Any]) -> ClusterView:
        """Take in a reply of `read_load` (lua/common.lua), either of changes or of everything."""
        self._now = reply[0] / 1e6
        changed = False
        if len(reply) == 4:
            _, self.generation, self.seq, flat = reply
            changed = self._take_all(dict(zip(flat[::2], flat[1::2], strict=True)))
        elif reply[1] == self.generation and reply[3]:
            _, _, self.seq, workers, packed = reply
            changed = self._take(zip(workers, packed[::2], packed[1::2], strict=True))
        if self._find_silent() or changed:
            self._view = ClusterView(list(self._live["prefill"].values()), list(self._live["decode"].values()))
        return self._view

    def dead(self) -> list[int]:
        """Workers silent for so long that their rows, queues and windows should go."""
        return (
            [self._known[f].row.id for f, at in self._silent.items() if self._now - at > self._reap_after_s] if self._silent else []
        )

    def _take_all(self, fields: dict[bytes, bytes]) -> bool:
        workers = [field for field in fields if field + b":s" in fields]
        for field in self._known.keys() - workers:
            self._forget(field)
        self._take((field, fields[field], fields[field + b":s"]) for field in workers)
        return True

    def _take(self, rows: Iterator[tuple[bytes, bytes | None, bytes | None]]) -> bool:
        changed = []
        for field, packed_row, packed_stats in rows:
            known = self._known.get(field)
            if packed_row is None or packed_stats is None:
                self._forget(field)
            elif known is None or (known.packed_row, known.packed_stats) != (packed_row, packed_stats):
                if (fresh := _decode(field, packed_row, packed_stats, known)) is None:
                    self._forget(field)
                else:
                    changed.append((fresh.at, field, fresh))
        changed.sort()  # heartbeats are kept in the order of time
        for at, field, fresh in changed:
            self._put(field, at, fresh)
        return True

    def _put(self, field: bytes, at: float, fresh: _Known) -> None:
        known = self._known.get(field)
        if known is not None and known.row.role != fresh.row.role:
            self._forget(field)
        self._known[field] = fresh
        if known is None or known.at != at:
            self._beats.pop(field, None)
            self._silent.pop(field, None)
            self._beats[field] = at
        if field in self._beats and fresh.row.schema == SCHEMA:
            self._live[fresh.row.role][field] = fresh.view

    def _find_silent(self) -> bool:
        silent = []
        for field, at in self._beats.items():
            if self._now - at <= self._stale_after_s:
                break
            silent.append(field)
        for field in silent:
            self._silent[field] = self._beats.pop(field)
            self._live[self._known[field].row.role].pop(field, None)
        return bool(silent)

    def _forget(self, field: bytes) -> None:
        known = self._known.pop(field, None)
        if known is not None:
            self._beats.pop(field, None)
            self._silent.pop(field, None)
            self._live[known.row.role].pop(field, None)


def _decode(field: bytes, packed_row: bytes, packed_stats: bytes, known: _Known | None) -> _Known | None:
    """A worker as it is now; None, with a word in the log, when its row is not understood."""
    try:
        row = known.row if known is not None and known.packed_row == packed_row else _row(packed_row)
        stats = _stats(packed_stats)
    except msgspec.DecodeError as e:
        log.warning("worker row %s is not understood and is left out: %s", field.decode(errors="replace"), e)
        return None
    return _Known(packed_row, packed_stats, row, stats.at, worker_view(row, stats))
