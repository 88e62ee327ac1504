"""What a process takes the workers to be doing while the store is away."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

from redis_server import RedisServer
from resilient_samples import first_round
from state_samples import entry, worker

from ampd.config import Policy
from ampd.cost_model import CoarseCostModel
from ampd.policy.registry import make_policy
from ampd.policy.types import ClusterView, Role, Round, WorkerView
from ampd.state.last_view import LastView
from ampd.state.resilient import ResilientStore


def seen(id: int, role: Role, queued_s: float = 0.0) -> WorkerView:
    return WorkerView(id=id, role=role, epoch="e", theta=1, queued_s=queued_s, kv_total=10_000, kv_free=10_000)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def queued(last: LastView) -> dict[int, float]:
    view = last.now()
    return {w.id: round(w.queued_s, 6) for w in (*view.prefill, *view.decode)}


def test_queues_are_worked_off_and_filled_by_what_is_sent() -> None:
    clock = Clock()
    last = LastView(clock)
    last.take(ClusterView([seen(1, "prefill", 2.0), seen(2, "prefill")], [seen(3, "decode", 0.5)]))
    assert queued(last) == {1: 2.0, 2: 0.0, 3: 0.5}
    clock.now += 1.0
    assert queued(last) == {1: 1.0, 2: 0.0, 3: 0.0}
    last.queue(1, 0.25)
    last.queue(3, 4.0)  # after it had been idle
    last.queue(9, 1.0)  # unknown
    assert queued(last) == {1: 1.25, 2: 0.0, 3: 4.0}
    last.queue(3, 4.0)
    clock.now += 2.0
    assert queued(last) == {1: 0.0, 2: 0.0, 3: 6.0}
    last.clear()
    assert queued(last) == {1: 0.0, 2: 0.0, 3: 0.0}


def test_promises_are_added_until_they_are_told() -> None:
    last = LastView(Clock())
    last.take(ClusterView([], [seen(3, "decode"), seen(4, "decode")]))
    last.promise(3, 700)
    last.promise(3, 50)
    assert [w.kv_promised for w in last.now().decode] == [750, 0]
    last.clear()
    assert [w.kv_promised for w in last.now().decode] == [0, 0]


def test_decisions_without_the_store_spread() -> None:
    """One view for all of an outage would send everything to the worker that looked best in it."""
    clock = Clock()
    last, policy, rng = LastView(clock), make_policy(Policy(name="predictive")), Random(3)
    last.take(ClusterView([seen(id, "prefill", 0.01 * id) for id in range(1, 9)], [seen(20, "decode", 60.0)]))
    sent: Counter[int] = Counter()
    for number in range(80):
        decision = policy.route(Round(f"s{number}", 1, 20, 0, 2000, 5.0, 1.0), last.now(), CoarseCostModel(), rng)
        sent[decision.worker] += 1
        last.queue(decision.worker, decision.estimate_s)
    assert set(sent) == set(range(1, 9))
    assert max(sent.values()) <= 14


async def test_tasks_sent_without_redis_show_until_it_is_back(connect: Callable[..., ResilientStore], server: RedisServer) -> None:
    store = connect()
    await store.connect()
    await store.put_worker(worker(7, "prefill"))
    await first_round(store)
    before = (await store.view()).prefill[0].queued_s
    server.stop()
    await store.view()
    assert store.away
    store.enqueue_soon(7, entry("a", 9.0))
    assert before + 8.0 < (await store.view()).prefill[0].queued_s <= before + 9.0
