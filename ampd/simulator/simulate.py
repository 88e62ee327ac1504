"""One simulation, from a setup and sessions to records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from ampd.policy.types import CostModel
from ampd.simulator.check import check
from ampd.simulator.cluster.decode import DecodeWorker
from ampd.simulator.cluster.link import Network
from ampd.simulator.cluster.loop import Loop
from ampd.simulator.cluster.prefill import PrefillWorker
from ampd.simulator.cluster.rounds import Rounds
from ampd.simulator.cluster.ttl import TimesToLive
from ampd.simulator.cluster.view import State
from ampd.simulator.cluster.worker import Worker, World
from ampd.simulator.records import RecordBook
from ampd.simulator.timeline import TimelineSink
from ampd.simulator.types import Outcome, Setup, TraceSession

# A round is late when its TTFT is over so many times its target.
LATE = 10.0
_WATCH_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Progress:
    """How a simulation stands: rounds ended, those of them that were late (`LATE`), and those under way that are so already."""

    now: float
    ended: int
    late: int
    open: int
    open_late: int


def simulate(
    setup: Setup,
    cost: CostModel,
    sessions: Sequence[TraceSession],
    seed: int = 0,
    until_s: float | None = None,
    *,
    believed: CostModel | None = None,
    stop: Callable[[Progress], bool] | None = None,
    sink: TimelineSink | None = None,
) -> Outcome:
    """Serve the sessions, sorted by arrival, and say how every round fared.

    `cost` is what things take; policies decide by `believed`, which is the same unless given. The simulation ends with the last
    round, at `until_s`, or when `stop`, asked every 10 s of virtual time, says so. The same arguments give the same records, to
    the byte.
    Raises ConfigError (a setup or trace that cannot be served: see `check`) and ProfileError (costs of a theta are not known).
    """
    world, rounds = assemble(setup, cost, sessions, seed, believed, sink)
    if stop is not None:
        _watch(world, rounds, stop)
    world.loop.run(inf if until_s is None else until_s)
    return _outcome(world, rounds)


def assemble(
    setup: Setup,
    cost: CostModel,
    sessions: Sequence[TraceSession],
    seed: int = 0,
    believed: CostModel | None = None,
    sink: TimelineSink | None = None,
) -> tuple[World, Rounds]:
    """All parts of a simulation before its first event. Raises as `simulate` does."""
    check(setup, cost, sessions)
    loop = Loop()
    state = State(loop, setup.delays)
    network = Network(loop, sum(g.replicas for g in setup.groups))
    world = World(setup, cost, loop, network, state, RecordBook(LATE * setup.ttft_s), TimesToLive(setup.ttl_rule), sink)
    for group in setup.groups:
        for _ in range(group.replicas):
            kind = PrefillWorker if group.role == "prefill" else DecodeWorker
            worker = kind(world, len(world.workers), group)
            world.workers.append(worker)
            state.add(worker, setup.policy.window_s)
    rounds = Rounds(world, sessions, cost if believed is None else believed, seed)
    world.prefilled, world.ended = rounds.prefilled, rounds.ended
    return world, rounds


def _watch(world: World, rounds: Rounds, stop: Callable[[Progress], bool]) -> None:
    """Ask every so often whether to go on, as long as there is something to come."""
    late_s = LATE * world.setup.ttft_s

    def look(now: float, _: None) -> None:
        book = world.book
        late = sum([now - job.arrived > late_s and not job.first_at <= now for job in rounds.open.values()])
        if stop(Progress(now, len(book), book.late, len(rounds.open), late)):
            world.loop.ended = True
        elif not world.loop.empty:
            world.loop.at(now + _WATCH_EVERY_S, look, None)

    world.loop.at(_WATCH_EVERY_S, look, None)


def _outcome(world: World, rounds: Rounds) -> Outcome:
    counts = dict(world.counts)
    counts["events"] = world.loop.events
    for name in ("evictions", "preemptions", "shed_pins"):
        counts[name] = sum([_counted(worker)[name] for worker in world.workers])
    for worker in world.workers:
        if isinstance(worker, DecodeWorker):
            worker.work_off()
    now, decide_s = world.loop.now, world.setup.delays.decide_s
    unfinished = [(job.arrived, job.index, job.number) for job in rounds.open.values()]
    for at, session in world.loop.waiting(rounds.decide):
        if at - decide_s <= now:
            unfinished.append((at - decide_s, session.index, session.number + 1))
    return Outcome(
        records=world.book.records(),
        unfinished=sorted(unfinished),
        ended_s=now,
        counts=counts,
        busy_s={worker.id: worker.busy_s for worker in world.workers},
    )


def _counted(worker: Worker) -> dict[str, int]:
    preemptions = worker.preemptions if isinstance(worker, DecodeWorker) else 0
    return {"evictions": worker.pool.evicted, "preemptions": preemptions, "shed_pins": worker.pins.shed_pins}
