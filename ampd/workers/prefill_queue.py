"""The prefill queue of one worker: Algorithm 2 at every dequeue, a bounded number of tasks in the engine.

The waiting set lives here, next to the payloads; Redis holds its mirror for the Coordinators, and may vanish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from ampd.errors import RoundCancelled
from ampd.policy.reordering import Reordering
from ampd.policy.types import PrefillTask


class Mirror(Protocol):
    """Told of every departure from the waiting set. Must not block."""

    def departed(self, task: str, postponed: Sequence[str]) -> None:
        """`task` left the queue; the tasks `postponed` were passed over once more."""


Order = Callable[[Sequence[PrefillTask], float], Reordering]


@dataclass(slots=True)
class _Waiting:
    task: PrefillTask
    tokens: int
    turn: asyncio.Future[None]


@dataclass(slots=True)
class Turn:
    """A task's stay in the engine, where it has `tokens` to compute. Times on the queue's clock."""

    task: PrefillTask
    tokens: int
    queued_s: float
    started_at: float


class PrefillQueue:
    """Waiting prefills in arrival order, `slots` of them in the engine at once; more while these have fewer than `room` tokens.

    A prefill worker has two slots: one task computes, one reads ahead. A decode worker has one, and room for a step's chunk: its
    steps take several short prefills, since a step costs little more for them than one without.
    """

    def __init__(self, slots: int, order: Order, mirror: Mirror, clock: Callable[[], float], room: int = 0) -> None:
        self._slots, self._order, self._mirror, self._clock, self._room = slots, order, mirror, clock, room
        self._waiting: dict[str, _Waiting] = {}
        self._running: dict[str, Turn] = {}

    @property
    def depth(self) -> int:
        """How many tasks wait."""
        return len(self._waiting)

    @property
    def waiting(self) -> list[PrefillTask]:
        """Tasks whose turn has not come, in arrival order."""
        return [w.task for w in self._waiting.values()]

    def running_s(self) -> float:
        """Estimated seconds of work left in the engine."""
        now = self._clock()
        left, elapsed = 0.0, 0.0
        for turn in self._running.values():
            elapsed = now - turn.started_at if not left else 0.0
            left += max(0.0, turn.task.cost_s - elapsed)
        return left

    async def take(self, task: PrefillTask, tokens: int = 0) -> Turn:
        """Wait for the turn of a task of so many tokens, which lasts until it is left. Cancelling while it waits removes it.

        Raises RoundCancelled when `cancel` removes it.
        """
        arrived = self._clock()
        waiting = _Waiting(task, tokens, asyncio.get_running_loop().create_future())
        self._insert(waiting)
        self._fill()
        try:
            await waiting.turn
        except asyncio.CancelledError:
            if self._waiting.pop(task.id, None) is not None:
                self._mirror.departed(task.id, ())
            else:  # its turn came in the same tick
                self.leave(task.id)
            raise
        turn = self._running[task.id]
        turn.queued_s = turn.started_at - arrived
        return turn

    def leave(self, task: str) -> None:
        """The task's turn is over, and the next one's may come. Idempotent."""
        if self._running.pop(task, None) is not None:
            self._fill()

    def _insert(self, waiting: _Waiting) -> None:
        """Keep the order of arrival at the Coordinator: a round that starts over after a failure has waited already."""
        task = waiting.task
        later = [id for id, other in self._waiting.items() if other.task.arrived_at > task.arrived_at]
        moved = {id: self._waiting.pop(id) for id in later}
        self._waiting[task.id] = waiting
        self._waiting |= moved

    def cancel(self, task: str) -> bool:
        """Remove a waiting task: its `turn` raises RoundCancelled. False when it does not wait (any more)."""
        waiting = self._waiting.pop(task, None)
        if waiting is None:
            return False
        self._mirror.departed(task, ())
        waiting.turn.set_exception(RoundCancelled(task))
        return True

    def _has_room(self) -> bool:
        return len(self._running) < self._slots or sum(turn.tokens for turn in self._running.values()) < self._room

    def _fill(self) -> None:
        while self._waiting and self._has_room():
            now = self._clock()
            first: str = next(iter(self._waiting))
            postponed: tuple[str, ...] = ()
            if len(self._waiting) > 1:
                chosen = self._order(self.waiting, now)
                first, postponed = chosen.first, chosen.postponed
            for task in postponed:
                waiting = self._waiting[task]
                waiting.task = replace(waiting.task, postponed=waiting.task.postponed + 1)
            entry = self._waiting.pop(first)
            self._running[first] = Turn(entry.task, entry.tokens, 0.0, now)
            self._mirror.departed(first, postponed)
            if not entry.turn.done():
                entry.turn.set_result(None)
