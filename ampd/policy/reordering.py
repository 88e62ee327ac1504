"""Order of a prefill queue: Algorithm 2 of the paper, exact for any window.

Of the first w waiting tasks, Algorithm 2 looks for the permutation under which the most tasks meet their TTFT target, and dequeues
its first. A task is postponed when the dequeued task overtakes it; one postponed w times is overtaken no more. (The rest of the
permutation is a plan that the next dequeue makes anew, so it postpones nobody.)

Small windows are enumerated as the paper does. From `_ENUMERATE` tasks on, the same answer comes from the Moore-Hodgson rule, which
is exact for the number of on-time tasks on one machine. Among equally good answers the one nearest to arrival order wins.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush, heappushpop
from itertools import permutations
from typing import Literal

import msgspec

from ampd.policy.types import PrefillTask

_ENUMERATE = 3
_PERMUTATIONS = [tuple(permutations(range(n))) for n in range(_ENUMERATE + 1)]


class Reordering(msgspec.Struct, frozen=True):
    """What to dequeue: `tasks[index]`, whose id is `first`; the planned order; and the ids overtaken, each postponed once more."""

    index: int
    first: str
    order: tuple[str, ...]
    postponed: tuple[str, ...]


def reorder(tasks: Sequence[PrefillTask], now: float, window: int, order: Literal["ampd", "fcfs"] = "ampd") -> Reordering:
    """Choose the next of `tasks`, given in arrival order, at time `now` on the clock of their `arrived_at`.

    Raises ValueError on an empty queue or a window under 1.
    """
    if not tasks or window < 1:
        raise ValueError(f"reorder needs a task and a window of at least 1, got {len(tasks)} tasks and window {window}")
    head = tasks[:window]
    plan = range(len(head)) if order == "fcfs" else _plan(head, now, window)
    index = plan[0]
    return Reordering(index, head[index].id, tuple([head[i].id for i in plan]), tuple([t.id for t in head[:index]]))


def _plan(head: Sequence[PrefillTask], now: float, window: int) -> Sequence[int]:
    """The best order of the window's indices. Tasks at the postponement bound lead, in arrival order."""
    costs = [t.cost_s for t in head]
    slack = [t.ttft_target_s - now + t.arrived_at for t in head]
    bound = [i for i, t in enumerate(head) if t.postponed >= window]
    free = [i for i in range(len(head)) if i not in bound]
    start = sum([costs[i] for i in bound])
    best = _enumerate(free, costs, slack, start) if len(free) <= _ENUMERATE else _schedule(free, costs, slack, start)
    return [*bound, *best]


def _enumerate(free: list[int], costs: list[float], slack: list[float], start: float) -> Sequence[int]:
    """The lexicographically first permutation with the most on-time tasks."""
    n = len(free)
    best: Sequence[int] = free
    best_on_time = -1
    for permutation in _PERMUTATIONS[n]:
        clock = start
        on_time = 0
        for k in permutation:
            i = free[k]
            clock += costs[i]
            if clock <= slack[i]:
                on_time += 1
        if on_time > best_on_time:
            best, best_on_time = permutation, on_time
            if on_time == n:
                break
    return [free[k] for k in best]


def _schedule(free: list[int], costs: list[float], slack: list[float], start: float) -> Sequence[int]:
    """The first index that some best order starts with, then its on-time tasks by deadline, then the late ones as they arrived."""
    by_deadline = sorted(free, key=slack.__getitem__)
    most = len(_on_time(by_deadline, costs, slack, start))
    for first in free:
        rest = [i for i in by_deadline if i != first]
        kept = _on_time(rest, costs, slack, start + costs[first])
        if (start + costs[first] <= slack[first]) + len(kept) == most:
            break
    on_time = [i for i in rest if i in kept]
    return [first, *on_time, *(i for i in free if i != first and i not in kept)]


def _on_time(by_deadline: list[int], costs: list[float], slack: list[float], start: float) -> set[int]:
    """Moore-Hodgson: take tasks by deadline; whenever the last one is late, drop the longest taken so far."""
    taken: list[tuple[float, int]] = []
    clock = start
    for i in by_deadline:
        clock += costs[i]
        if clock <= slack[i]:
            heappush(taken, (-costs[i], i))
        else:
            clock += heappushpop(taken, (-costs[i], i))[0]
    return {i for _, i in taken}
