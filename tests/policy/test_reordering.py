"""Algorithm 2 against an oracle that tries every permutation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampd.policy.reordering import reorder
from ampd.policy.types import PrefillTask

NOW = 100.0


def on_time(order: Sequence[PrefillTask]) -> int:
    clock, count = 0.0, 0
    for task in order:
        clock += task.cost_s
        count += (NOW - task.arrived_at) + clock <= task.ttft_target_s
    return count


def oracle(head: Sequence[PrefillTask], window: int) -> tuple[str, int]:
    """First task and on-time count of the permutation that is best, then nearest to arrival order; tasks at the bound lead."""
    bound = [t for t in head if t.postponed >= window]
    free = [t for t in head if t.postponed < window]
    orders = [[*bound, *rest] for rest in permutations(free)]
    best = max(on_time(o) for o in orders)
    return next(o[0].id for o in orders if on_time(o) == best), best


# Multiples of 1/8 keep every sum exact, so oracle and policy see the same ties.
eighths = st.integers(0, 40).map(lambda n: n / 8)


@st.composite
def queues(draw: st.DrawFn) -> tuple[list[PrefillTask], int]:
    window = draw(st.integers(1, 7))
    waits = sorted(draw(st.lists(eighths, min_size=1, max_size=9)), reverse=True)
    tasks = [
        PrefillTask(
            str(i), NOW - wait, draw(eighths), draw(eighths) + 1, draw(st.integers(0, window)) if draw(st.booleans()) else 0
        )
        for i, wait in enumerate(waits)
    ]
    return tasks, window


@given(queues())
@settings(max_examples=1500, deadline=None)
def test_first_task_and_on_time_count_equal_full_enumeration(case: tuple[list[PrefillTask], int]) -> None:
    tasks, window = case
    head = tasks[:window]
    answer = reorder(tasks, NOW, window)
    first, best = oracle(head, window)
    assert answer.first == first == tasks[answer.index].id
    assert sorted(answer.order) == sorted(t.id for t in head)
    by_id = {t.id: t for t in head}
    assert on_time([by_id[i] for i in answer.order]) == best
    assert answer.order[0] == first
    assert list(answer.postponed) == [t.id for t in tasks[: answer.index]]


@given(st.integers(0, 2**32), st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_no_task_is_postponed_more_than_w_times(seed: int, window: int) -> None:
    rng = Random(seed)
    now, waiting, postponed, served = 0.0, [], {}, []
    for n in range(80):
        for _ in range(rng.choice([0, 1, 1, 3])):
            id = f"{n}-{len(waiting)}-{rng.random()}"
            waiting.append(PrefillTask(id, now, rng.choice([0.01, 0.1, 2.0]), rng.choice([0.05, 0.5, 5.0])))
        if not waiting:
            now += 0.1
            continue
        answer = reorder(waiting, now, window)
        task = waiting.pop(answer.index)
        served.append(task.id)
        for i, other in enumerate(waiting):
            if other.id in answer.postponed:
                count = postponed[other.id] = other.postponed + 1
                waiting[i] = PrefillTask(other.id, other.arrived_at, other.cost_s, other.ttft_target_s, count)
        now += task.cost_s
    assert served
    assert max(postponed.values(), default=0) <= window


def task(id: str, cost_s: float, left_s: float, postponed: int = 0) -> PrefillTask:
    """A task with `left_s` seconds to its target."""
    return PrefillTask(id, NOW - 1.0, cost_s, left_s + 1.0, postponed)


def test_a_short_urgent_task_overtakes_a_long_one() -> None:
    answer = reorder([task("long", 3.0, 5.0), task("short", 0.5, 1.0), task("behind", 0.1, 9.0)], NOW, 2)
    assert (answer.first, answer.order, answer.postponed) == ("short", ("short", "long"), ("long",))


def test_a_tie_keeps_arrival_order() -> None:
    assert reorder([task("a", 1.0, 9.0), task("b", 0.1, 9.0)], NOW, 3).first == "a"
    assert reorder([task("a", 1.0, -1.0), task("b", 0.1, -1.0)], NOW, 3).first == "a"


def test_a_task_postponed_w_times_goes_first_though_others_miss_their_target() -> None:
    urgent = task("b", 0.5, 0.6)
    assert reorder([task("a", 3.0, 9.0, postponed=2), urgent], NOW, 3).first == "b"
    assert reorder([task("a", 3.0, 9.0, postponed=3), urgent], NOW, 3).first == "a"


def test_fcfs_keeps_arrival_order() -> None:
    answer = reorder([task("long", 3.0, 5.0), task("short", 0.5, 1.0)], NOW, 3, "fcfs")
    assert (answer.first, answer.postponed) == ("long", ())


def test_an_empty_queue_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 tasks and window 3"):
        reorder([], NOW, 3)
