"""Algorithm 2 against an oracle that tries every permutation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampd.policy.reordering import Order, reorder
from ampd.policy.types import PrefillTask

NOW = 100.0


def on_time(order: Sequence[PrefillTask]) -> int:
    clock, count = 0.0, 0
    for task in order:
        clock += task.cost_s
        count += (NOW - task.arrived_at) + clock <= task.ttft_target_s
    return count


def oracle(head: Sequence[PrefillTask], window: int) -> tuple[str, tuple[int, ...]]:
    """First task and on-time count of each priority class, of the permutation that is best, then nearest to arrival order.

    Tasks at the bound lead; the more urgent class goes before the less urgent, whatever that does to the latter.
    """
    order = [t for t in head if t.postponed >= window]
    free = [t for t in head if t.postponed < window]
    counts = [on_time(order)]
    for priority in sorted({t.priority for t in free}, reverse=True):
        best, most = best_permutation([t for t in free if t.priority == priority], sum(t.cost_s for t in order))
        counts.append(counts[-1] + most)
        order += best
    return order[0].id, tuple(counts)


def best_permutation(tasks: Sequence[PrefillTask], start: float, bound: int = 0) -> tuple[list[PrefillTask], int]:
    """In one pass over those that move none of the first `bound` tasks back: the first with the most on time, and how many."""
    figures = [(t.cost_s, t.ttft_target_s - (NOW - t.arrived_at)) for t in tasks]
    best, most = tuple(range(len(tasks))), -1
    alone = sum(start + cost <= left for cost, left in figures)  # no order can do better than this
    for permutation in permutations(range(len(tasks))):
        if bound and any(permutation.index(i) > i for i in range(bound)):
            continue
        clock, count = start, 0
        for i in permutation:
            cost, left = figures[i]
            clock += cost
            count += clock <= left
        if count > most:
            best, most = permutation, count
            if most == alone:
                break
    return [tasks[i] for i in best], most


seeds = st.integers(0, 2**32)


def drawn_queue(seed: int) -> tuple[list[PrefillTask], int]:
    """A queue and a window. From one seed: a draw of Hypothesis for each figure would take longer than all permutations do."""
    rng = Random(seed)
    window, size = rng.randint(1, 7), rng.randint(1, 9)
    classes = rng.choice([[0], [0], [0, 1], [-1, 0, 2]])
    most = rng.choice([8, 40])

    def eighths() -> float:
        return rng.randint(0, most) / 8  # exact in every sum, so that oracle and policy see the same ties

    waits = sorted((eighths() for _ in range(size)), reverse=True)
    counts = [rng.randint(0, window) if rng.random() < 0.3 else 0 for _ in waits]
    tasks = [
        PrefillTask(str(i), NOW - wait, eighths(), eighths() * rng.choice([1, 4]) + 1, count, rng.choice(classes))
        for i, (wait, count) in enumerate(zip(waits, counts, strict=True))
    ]
    return tasks, window


@given(seeds)
@settings(max_examples=3000, deadline=None)
def test_first_task_and_on_time_count_equal_full_enumeration(seed: int) -> None:
    tasks, window = drawn_queue(seed)
    head = tasks[:window]
    answer = reorder(tasks, NOW, window)
    first, counts = oracle(head, window)
    assert answer.first == first == tasks[answer.index].id
    assert sorted(answer.order) == sorted(t.id for t in head)
    by_id = {t.id: t for t in head}
    assert on_time([by_id[i] for i in answer.order]) == counts[-1]
    assert answer.order[0] == first
    assert list(answer.postponed) == [t.id for t in tasks[: answer.index]]


@given(seeds)
@settings(max_examples=1000, deadline=None)
def test_on_counts_that_can_occur_the_bound_is_the_papers(seed: int) -> None:
    """Its rule as it stands there: permutations that would move a task at the bound back are skipped."""
    drawn, window = drawn_queue(seed)
    counts = sorted((t.postponed for t in drawn), reverse=True)
    tasks = [replace(t, postponed=count, priority=0) for t, count in zip(drawn, counts, strict=True)]
    head = tasks[:window]
    best, most = best_permutation(head, 0.0, sum(t.postponed >= window for t in head))
    answer = reorder(tasks, NOW, window)
    assert answer.first == best[0].id
    by_id = {t.id: t for t in head}
    assert on_time([by_id[i] for i in answer.order]) == most


def most_on_time(tasks: Sequence[PrefillTask], start: float) -> int:
    """By dynamic programming: after each task in order of deadlines, the least time in which k of them can be on time."""
    least = [start]
    for task in sorted(tasks, key=lambda t: t.arrived_at + t.ttft_target_s):
        left = task.arrived_at + task.ttft_target_s - NOW
        longer = [done + task.cost_s if done + task.cost_s <= left else float("inf") for done in least]
        least = [min(a, b) for a, b in zip([*least, float("inf")], [float("inf"), *longer], strict=True)]
        while least[-1] == float("inf"):
            least.pop()
    return len(least) - 1


def first_best(tasks: Sequence[PrefillTask]) -> tuple[str, int]:
    most = most_on_time(tasks, 0.0)
    for i, task in enumerate(tasks):
        first_on_time = NOW - task.arrived_at + task.cost_s <= task.ttft_target_s
        if first_on_time + most_on_time([*tasks[:i], *tasks[i + 1 :]], task.cost_s) == most:
            return task.id, most
    raise AssertionError


@given(st.integers(0, 2**32), st.integers(1, 64), st.sampled_from([8, 40, 200]))
@settings(max_examples=400, deadline=None)
def test_large_windows_are_exact(seed: int, size: int, spread: int) -> None:
    rng = Random(seed)
    waits = sorted((rng.randrange(spread) / 8 for _ in range(size)), reverse=True)
    tasks = [PrefillTask(str(i), NOW - wait, rng.randrange(20) / 8, rng.randrange(spread) / 4) for i, wait in enumerate(waits)]
    answer = reorder(tasks, NOW, 64)
    first, most = first_best(tasks)
    assert answer.first == first
    assert on_time([tasks[int(i)] for i in answer.order]) == most


@given(st.integers(0, 2**32), st.integers(1, 9), st.sampled_from(["ampd", "edf", "hrrn", "fcfs"]))
@settings(max_examples=120, deadline=None)
def test_no_task_is_postponed_more_than_w_times(seed: int, window: int, order: Order) -> None:
    rng = Random(seed)
    now, waiting, postponed, served = 0.0, [], {}, []
    for n in range(80):
        for _ in range(rng.choice([0, 1, 1, 3])):
            id = f"{n}-{len(waiting)}-{rng.random()}"
            cost, target, priority = rng.choice([0.01, 0.1, 2.0]), rng.choice([0.05, 0.5, 5.0]), rng.choice([0, 0, 1])
            waiting.append(PrefillTask(id, now, cost, target, priority=priority))
        if not waiting:
            now += 0.1
            continue
        answer = reorder(waiting, now, window, order)
        task = waiting.pop(answer.index)
        served.append(task.id)
        for i, other in enumerate(waiting):
            if other.id in answer.postponed:
                count = postponed[other.id] = other.postponed + 1
                waiting[i] = replace(other, postponed=count)
        now += task.cost_s
        counts = [other.postponed for other in waiting]
        assert counts == sorted(counts, reverse=True), "counts never rise along the queue"
    assert served
    assert max(postponed.values(), default=0) <= window


def task(id: str, cost_s: float, left_s: float, postponed: int = 0, priority: int = 0) -> PrefillTask:
    """A task that has waited a second, with `left_s` seconds to its target."""
    return PrefillTask(id, NOW - 1.0, cost_s, left_s + 1.0, postponed, priority)


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


def test_edf_takes_the_earliest_deadline_and_ties_as_they_arrived() -> None:
    queue = [task("a", 0.1, 9.0), task("b", 5.0, 2.0), task("c", 0.1, 2.0)]
    answer = reorder(queue, NOW, 3, "edf")
    assert (answer.order, answer.postponed) == (("b", "c", "a"), ("a",))


def test_hrrn_takes_the_highest_response_ratio() -> None:
    queue = [task("long", 2.0, 9.0), task("short", 0.25, 9.0), task("same", 0.25, 9.0)]  # ratios 1.5, 5 and 5
    assert reorder(queue, NOW, 3, "hrrn").order == ("short", "same", "long")
    waited = PrefillTask("long", NOW - 9.0, 2.0, 9.0)  # 5.5
    assert reorder([waited, *queue[1:]], NOW, 3, "hrrn").first == "long"
    assert reorder([*queue, task("free", 0.0, 9.0)], NOW, 4, "hrrn").first == "free"


@pytest.mark.parametrize("order", ["ampd", "edf", "hrrn"])
def test_urgent_classes_go_first_but_not_before_tasks_at_the_bound(order: Order) -> None:
    usual, urgent, background = task("u", 0.1, 1.0), task("!", 3.0, 9.0, priority=1), task("b", 0.1, 0.5, priority=-1)
    assert reorder([background, usual, urgent], NOW, 3, order).order == ("!", "u", "b")
    bound = task("b", 0.1, 0.5, postponed=3, priority=-1)
    assert reorder([bound, usual, urgent], NOW, 3, order).order == ("b", "!", "u")
    assert reorder([background, usual, urgent], NOW, 3, "fcfs").first == "b"


def test_an_empty_queue_is_an_error() -> None:
    with pytest.raises(ValueError, match="0 tasks and window 3"):
        reorder([], NOW, 3)
