"""Order of a prefill queue: Algorithm 2 of the paper, exact for any window, and three plainer orders to compare it with.

Of the first w waiting tasks, Algorithm 2 looks for the permutation under which the most tasks meet their TTFT target, and dequeues
its first. A task is postponed when the dequeued task overtakes it; one postponed w times is overtaken no more. (The rest of the
permutation is a plan that the next dequeue makes anew, so it postpones nobody.) Among equally good permutations the one whose first
task is nearest to arrival order wins.

Up to three tasks are permuted as the paper does (`few` writes the usual case out); from there on `moore_hodgson` finds the same
first task in polynomial time.

Orders: `ampd` is Algorithm 2; `edf` takes the earliest deadline (arrival + target) first; `hrrn` the highest response ratio,
(waited + cost) / cost; `fcfs` arrival order. All but `fcfs`, which never postpones, keep the postponement bound and priorities:
tasks at the bound lead, as they arrived; then each class of equal priority, the most urgent first, is ordered by itself.

The paper states the bound otherwise: permutations that move a task at the bound back once more are skipped. Both come to the same.
All that are ahead of the dequeued task are postponed, and newcomers join at the end with none, so counts never rise along a queue:
the tasks at the bound are its first k. To move none of those back, a permutation must begin with them, as they arrived.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from math import inf
from typing import Literal

import msgspec

from ampd.policy.few import AS_THEY_CAME, best_of_few
from ampd.policy.moore_hodgson import schedule
from ampd.policy.types import PrefillTask

Order = Literal["ampd", "edf", "hrrn", "fcfs"]
_FEW = 3


class Reordering(msgspec.Struct, frozen=True):
    """What to dequeue: `tasks[index]`, whose id is `first`; the planned order; and the ids overtaken, each postponed once more."""

    index: int
    first: str
    order: tuple[str, ...]
    postponed: tuple[str, ...]


def reorder(tasks: Sequence[PrefillTask], now: float, window: int, order: Order = "ampd") -> Reordering:
    """Choose the next of `tasks`, given in arrival order, at time `now` on the clock of their `arrived_at`.

    Raises ValueError on an empty queue or a window under 1.
    """
    if not tasks or window < 1:
        raise ValueError(f"reorder needs a task and a window of at least 1, got {len(tasks)} tasks and window {window}")
    head = tasks[:window]
    ids = tuple([task.id for task in head])
    if order == "fcfs":
        return Reordering(0, ids[0], ids, ())
    few = best_of_few(head, now, window) if order == "ampd" and len(head) <= _FEW else None
    if few is AS_THEY_CAME:
        return Reordering(0, ids[0], ids, ())
    plan = _plan(head, now, window, order) if few is None else few
    index = plan[0]
    return Reordering(index, ids[index], tuple([ids[i] for i in plan]), ids[:index])


def _plan(head: Sequence[PrefillTask], now: float, window: int, order: Order) -> list[int]:
    """The best order of the window's indices."""
    costs: list[float] = []
    slack: list[float] = []
    bound: list[int] = []
    start, priority, equal = 0.0, head[0].priority, True
    for i, task in enumerate(head):
        costs.append(task.cost_s)
        slack.append(task.ttft_target_s - now + task.arrived_at)
        if task.postponed >= window:
            bound.append(i)
            start += task.cost_s
        if task.priority != priority:
            equal = False
    indices = range(len(head))
    free = [i for i in indices if i not in bound] if bound else list(indices)
    if equal:
        return bound + _ordered(free, costs, slack, start, head, now, order)
    plan = bound
    for priority in sorted({t.priority for t in head}, reverse=True):
        equals = [i for i in free if head[i].priority == priority]
        plan += _ordered(equals, costs, slack, start, head, now, order)
        start += sum([costs[i] for i in equals])
    return plan


def _ordered(
    free: list[int], costs: list[float], slack: list[float], start: float, head: Sequence[PrefillTask], now: float, order: Order
) -> list[int]:
    """One priority class, from `start` on. Sorting is stable, so ties keep arrival order."""
    if order == "ampd":
        return _enumerate(free, costs, slack, start) if len(free) <= _FEW else schedule(free, costs, slack, start)
    if order == "edf":
        return sorted(free, key=slack.__getitem__)
    return sorted(free, key=lambda i: -(now - head[i].arrived_at + costs[i]) / costs[i] if costs[i] > 0 else -inf)


def _enumerate(free: list[int], costs: list[float], slack: list[float], start: float) -> list[int]:
    """The lexicographically first permutation with the most on-time tasks."""
    best: list[int] = free
    best_on_time = -1
    most = 0  # no order can have more on time than those that would be if they went first
    for i in free:
        if start + costs[i] <= slack[i]:
            most += 1
    for permutation in permutations(free):
        clock, on_time = start, 0
        for i in permutation:
            clock += costs[i]
            if clock <= slack[i]:
                on_time += 1
        if on_time > best_on_time:
            best, best_on_time = list(permutation), on_time
            if on_time == most:
                break
    return best
