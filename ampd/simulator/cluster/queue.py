"""A worker's prefill queue: ampd/workers/prefill_queue.py without its futures. The policy's order is asked at every dequeue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ampd.config.schema import Reorder
from ampd.policy.reordering import reorder
from ampd.policy.types import PrefillTask
from ampd.simulator.cluster.job import Job


class PrefillQueue:
    """Waiting prefills in the order of their rounds' arrival; up to `slots` have their turn at once, more while these have fewer
    than `room` tokens to compute.

    `turn(now, job)` is called when a job's turn comes; `departed_s` and `departed` are the seconds and number of tasks that have
    left since they were last reported.
    """

    __slots__ = ("_jobs", "_order", "_room", "_slots", "_tasks", "_turn", "_window", "departed", "departed_s", "running")

    def __init__(self, slots: int, rule: Reorder, turn: Callable[[float, Job], None], room: int = 0) -> None:
        self._slots, self._order, self._window, self._turn = slots, rule.name, rule.window, turn
        self._room = room
        self._tasks: list[PrefillTask] = []
        self._jobs: list[Job] = []
        self.running: list[Job] = []
        self.departed = 0
        self.departed_s = 0.0

    def __len__(self) -> int:
        return len(self._tasks)

    def running_s(self, now: float) -> float:
        """Estimated seconds of work left in the engine: of all that have their turn, the first began at its start."""
        left = 0.0
        for job in self.running:
            elapsed = now - job.started_at if not left else 0.0
            rest = job.cost_s - elapsed
            if rest > 0.0:
                left += rest
        return left

    def put(self, now: float, job: Job) -> None:
        """A task has come."""
        job.queued_at = now
        task, tasks = job.task, self._tasks
        at = len(tasks)
        while at and tasks[at - 1].arrived_at > task.arrived_at:
            at -= 1
        tasks.insert(at, task)
        self._jobs.insert(at, job)
        self._fill(now)

    def leave(self, now: float, job: Job) -> None:
        """A turn is over; the next may come."""
        self.running.remove(job)
        self._fill(now)

    def _fill(self, now: float) -> None:
        while self._tasks and (len(self.running) < self._slots or self._has_room()):
            self._next(now)

    def _has_room(self) -> bool:
        return sum([job.prompt - job.l_hist for job in self.running]) < self._room if self._room else False

    def _next(self, now: float) -> None:
        tasks, index = self._tasks, 0
        if len(tasks) > 1:
            chosen = reorder(tasks, now, self._window, self._order)
            index = chosen.index
            if chosen.postponed:
                overtaken = set(chosen.postponed)
                for i, task in enumerate(tasks[: len(chosen.order)]):
                    if task.id in overtaken:
                        tasks[i] = replace(task, postponed=task.postponed + 1)
        del tasks[index]
        job = self._jobs.pop(index)
        job.started_at = now
        job.queued_s = now - job.queued_at
        self.running.append(job)
        self.departed += 1
        self.departed_s += job.cost_s
        self._turn(now, job)
