"""The most on-time tasks on one machine, and the earliest task in arrival order that some best order starts with.

Moore and Hodgson (Moore, Management Science 15, 1968): take tasks by deadline; whenever the last one is late, drop the longest
taken so far. What is left is a largest set of tasks that can all be on time, and by deadline is an order in which they are.

Which tasks may go first without lowering that number is asked of each in arrival order. Most answers need no new schedule:
- A task of the set may, if all that the set places before it can wait for it. If nothing was dropped, that is exact.
- A task that is late even when it goes first only pushes the rest back by its cost. The more it pushes the worse, so an answer
  for one cost answers for all smaller, or all larger ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappush, heappushpop
from math import inf


def schedule(tasks: Sequence[int], costs: Sequence[float], slack: Sequence[float], start: float) -> list[int]:
    """A best order of `tasks`, which are indices into `costs` and `slack` (seconds left to the deadline), in arrival order.

    From `start` on the machine is free. On-time tasks follow the first by deadline, then the late ones as they arrived.
    """
    by_deadline = sorted([i for i in tasks if start + costs[i] <= slack[i]], key=slack.__getitem__)
    kept = _on_time(by_deadline, costs, slack, start, len(by_deadline)) or []
    may_drop = len(by_deadline) - len(kept)
    spare, all_spare = _spare(kept, costs, slack, start)
    alive = set(by_deadline)
    too_long = inf
    for first in tasks:
        cost = costs[first]
        late = first not in alive
        if cost <= (all_spare if late else spare.get(first, -inf)):
            return _order(first, kept, tasks)
        if may_drop == 0 or (late and cost >= too_long):
            continue
        others = by_deadline if late else [i for i in by_deadline if i != first]
        rest = _on_time(others, costs, slack, start + cost, may_drop)
        if rest is not None:
            return _order(first, rest, tasks)
        if late:
            too_long = cost
    raise AssertionError("the first task of `kept` has all the time it needs")


def _on_time(
    by_deadline: Sequence[int], costs: Sequence[float], slack: Sequence[float], start: float, may_drop: int
) -> list[int] | None:
    """A largest on-time subset of `by_deadline`, in its order; None if more than `may_drop` tasks have to be dropped."""
    clock = start
    fitting = 0
    for i in by_deadline:
        if clock + costs[i] > slack[i]:
            break
        clock += costs[i]
        fitting += 1
    else:
        return list(by_deadline)
    taken = [(-costs[i], i) for i in by_deadline[:fitting]]
    heapify(taken)
    for i in by_deadline[fitting:]:
        clock += costs[i]
        if clock <= slack[i]:
            heappush(taken, (-costs[i], i))
        else:
            if may_drop == 0:
                return None
            may_drop -= 1
            clock += heappushpop(taken, (-costs[i], i))[0]
    stay = {i for _, i in taken}
    return [i for i in by_deadline if i in stay]


def _spare(kept: Sequence[int], costs: Sequence[float], slack: Sequence[float], start: float) -> tuple[dict[int, float], float]:
    """By how much all that come before each task of `kept` may be pushed back, and by how much all of them may."""
    before = {}
    clock, least = start, inf
    for i in kept:
        before[i] = least
        clock += costs[i]
        least = min(least, slack[i] - clock)
    return before, least


def _order(first: int, on_time: Sequence[int], tasks: Sequence[int]) -> list[int]:
    ahead = {first: None} | dict.fromkeys(on_time)
    return [*ahead, *(i for i in tasks if i not in ahead)]
