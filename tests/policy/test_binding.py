from __future__ import annotations

from typing import Any

import pytest

from ampd.errors import NoWorkers
from ampd.policy.binding import choose_decode, kv_room
from ampd.policy.types import ClusterView, WorkerView


def decode(id: int, kv_free: int, **fields: Any) -> WorkerView:
    return WorkerView(id=id, role="decode", epoch="d", theta=1, kv_total=fields.pop("kv_total", 10_000), kv_free=kv_free, **fields)


def chosen(*workers: WorkerView, tokens: int = 100) -> int:
    return choose_decode(ClusterView((), workers), tokens).id


def test_most_free_memory_wins() -> None:
    assert chosen(decode(1, 500), decode(2, 900), decode(3, 700)) == 2


def test_pinned_memory_is_in_use_and_promised_memory_is_spoken_for() -> None:
    assert chosen(decode(1, 600, kv_pinned=3000), decode(2, 500, kv_pinned=0)) == 1
    assert chosen(decode(1, 900, kv_promised=500), decode(2, 500)) == 2
    assert kv_room(decode(1, 100, kv_promised=300)) == -200


def test_ties_go_to_the_fewest_running_then_the_lowest_id() -> None:
    assert chosen(decode(3, 500, running=1), decode(2, 500, running=2), decode(1, 500, running=2)) == 3
    assert chosen(decode(3, 500, running=1), decode(2, 500, running=1)) == 2


def test_a_worker_that_can_never_hold_the_prompt_is_passed_over_while_another_can() -> None:
    small, full = decode(1, 900, kv_total=1000), decode(2, 100, kv_total=10_000)
    assert chosen(small, full, tokens=2000) == 2
    assert chosen(small, tokens=2000) == 1


def test_full_workers_still_take_sessions() -> None:
    assert chosen(decode(1, 0, kv_promised=9000), decode(2, 0, kv_promised=100)) == 2


def test_draining_workers_take_none() -> None:
    assert chosen(decode(1, 900, draining=True), decode(2, 100)) == 2
    for workers in ((), (decode(1, 900, draining=True),)):
        with pytest.raises(NoWorkers, match="no live decode worker"):
            choose_decode(ClusterView((), workers), 1)
