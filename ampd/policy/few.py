"""The best order of one, two or three tasks: all permutations, written out.

Queues are mostly this short, and windows default to three, so this is what nearly every dequeue runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from ampd.policy.types import PrefillTask

Plan = tuple[int, ...]
AS_THEY_CAME: Plan = ()
_BA = (1, 0)
_ACB, _BAC, _BCA, _CAB, _CBA = (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)


def best_of_few(tasks: Sequence[PrefillTask], now: float, window: int) -> Plan | None:
    """The lexicographically first permutation with the most tasks on time, of at most three tasks that start at `now`.

    None when that is not the question: a task is at the bound, or priorities differ.
    """
    if len(tasks) == 3:
        a, b, c = tasks
        if a.postponed >= window or b.postponed >= window or c.postponed >= window or not a.priority == b.priority == c.priority:
            return None
        return _best_of_three(a, b, c, now)
    if len(tasks) == 1:
        return AS_THEY_CAME
    a, b = tasks
    if a.postponed >= window or b.postponed >= window or a.priority != b.priority:
        return None
    a_cost, b_cost = a.cost_s, b.cost_s
    a_slack, b_slack, both = a.ttft_target_s - now + a.arrived_at, b.ttft_target_s - now + b.arrived_at, a_cost + b_cost
    a_leads, b_leads = (a_cost <= a_slack) + (both <= b_slack), (b_cost <= b_slack) + (both <= a_slack)
    return AS_THEY_CAME if a_leads >= b_leads else _BA


def _best_of_three(a: PrefillTask, b: PrefillTask, c: PrefillTask, now: float) -> Plan:
    a_cost, b_cost, c_cost = a.cost_s, b.cost_s, c.cost_s
    a_slack, b_slack = a.ttft_target_s - now + a.arrived_at, b.ttft_target_s - now + b.arrived_at
    c_slack = c.ttft_target_s - now + c.arrived_at
    ab, ac = a_cost + b_cost, a_cost + c_cost
    a_first, b_first, c_first = a_cost <= a_slack, b_cost <= b_slack, c_cost <= c_slack
    c_last = ab + c_cost <= c_slack
    best, on_time = AS_THEY_CAME, a_first + (ab <= b_slack) + c_last
    if on_time == a_first + b_first + c_first:  # no order has more on time than those that would be if they went first
        return best
    b_last = ac + b_cost <= b_slack
    if (count := a_first + (ac <= c_slack) + b_last) > on_time:
        best, on_time = _ACB, count
    if (count := b_first + (ab <= a_slack) + c_last) > on_time:
        best, on_time = _BAC, count
    bc = b_cost + c_cost
    a_last = bc + a_cost <= a_slack
    if (count := b_first + (bc <= c_slack) + a_last) > on_time:
        best, on_time = _BCA, count
    if (count := c_first + (ac <= a_slack) + b_last) > on_time:
        best, on_time = _CAB, count
    return _CBA if c_first + (bc <= b_slack) + a_last > on_time else best
