"""What Coordinators do: open a round, bind its session, measure its history, place its prefill; and rounds' way between workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

from ampd.policy.binding import choose_decode, rebind
from ampd.policy.held import still_held
from ampd.policy.registry import make_policy
from ampd.policy.types import ClusterView, CostModel, Decision, PrefillTask, Round
from ampd.simulator.cluster.decode import DecodeWorker
from ampd.simulator.cluster.job import DEFLECTED, LOCAL, REMOTE, Held, Job, Session
from ampd.simulator.cluster.worker import World
from ampd.simulator.types import TraceSession

_MOST_HELD = 4  # prefill workers remembered for a session, as ampd/coordinator/held.py does
_NOTHING: Mapping[int, int] = {}


class Rounds:
    """Sessions from their arrival to their end. `believed` are the cost functions that decisions are made by.

    Rounds are dealt to the Coordinators in turn; each has a random generator of its own and all read the same state.
    """

    def __init__(self, world: World, traces: Sequence[TraceSession], believed: CostModel, seed: int) -> None:
        setup = world.setup
        self._world, self._traces, self._believed = world, traces, believed
        self._size = setup.block_size
        chunk = next(g.chunk for g in setup.groups if g.role == "decode")
        self._router = make_policy(setup.policy, prefill_chunk=chunk)
        self._force = setup.policy.force
        self._rngs = [Random(f"{seed}-{i}") for i in range(setup.coordinators)]
        self._learns = setup.retention == "ttl"
        self._dealt = 0
        self._left = len(traces)
        self.open: dict[int, Job] = {}  # by session: rounds under way
        if traces:
            world.loop.at(traces[0].arrives_s, self._arrives, 0)

    def _arrives(self, now: float, index: int) -> None:
        """A session arrives, and the next one is waited for."""
        trace = self._traces[index]
        if index + 1 < len(self._traces):
            self._world.loop.at(self._traces[index + 1].arrives_s, self._arrives, index + 1)
        self._world.loop.at(now + self._world.setup.delays.decide_s, self.decide, Session(index, trace))

    def decide(self, now: float, session: Session) -> None:
        """A Coordinator places the session's next round, which arrived `decide_s` ago."""
        world = self._world
        round = session.rounds[session.number]
        session.number += 1
        if self._learns and session.number > 1:
            world.lives.ran(round.tool, round.gap_s)
        if round.history < session.context - 1:
            self._rewritten(session, round.history)
        view = world.state.view()
        if session.decode < 0:
            self._bind(now, session, round.prompt + round.output, view)
            view = world.state.view()
        job = Job(session, round.prompt, round.output, now - world.setup.delays.decide_s)
        job.matched = min(round.history, session.context, round.prompt) // self._size * self._size
        job.l_hist = self._history(now, session, job)
        self._dealt += 1
        rng = self._rngs[self._dealt % len(self._rngs)]
        placement = self._placement(session, job)
        if world.setup.policy.rebind != "never" and session.number > 1:
            placement = self._rebound(now, session, job, placement, view)
            view = world.state.view()
        forced = self._force[(job.number - 1) % len(self._force)] if self._force else None
        decision = self._router.route(placement, view, self._believed, rng, forced)
        self.open[job.index] = job
        self._dispatch(now, job, decision, placement)

    def _bind(self, now: float, session: Session, tokens: int, view: ClusterView) -> None:
        chosen = choose_decode(view, tokens, rule=self._world.setup.policy.binding, cost=self._believed)
        session.decode = chosen.id
        self._world.state.promise(now, chosen.id, tokens)

    def _rebound(self, now: float, session: Session, job: Job, placement: Round, view: ClusterView) -> Round:
        """The round after `policy.rebind` has been asked; a move loses the history."""
        found = rebind(placement, view, self._believed, rule=self._world.setup.policy.rebind)
        if found is None:
            return placement
        world = self._world
        world.workers[session.decode].give_back(now, job)
        session.decode = job.decode = found.worker.id
        session.pinned = job.l_hist = 0
        world.state.promise(now, found.worker.id, job.prompt + job.output)
        world.counts["rebound"] += 1
        return self._placement(session, job)

    def _placement(self, session: Session, job: Job) -> Round:
        setup = self._world.setup
        held = _NOTHING
        if session.held and setup.prefill_history != "none":
            held = still_held(session.held, job.matched, self._world.state.only([h.worker for h in session.held]))
        return Round(
            session.name, job.number, job.decode, job.l_hist, job.prompt - job.l_hist, setup.ttft_s, setup.itl_s, held
        )  # fmt: skip

    def _history(self, now: float, session: Session, job: Job) -> int:
        """Leading tokens that the decode worker is believed to hold, in whole blocks; at least one is left to compute."""
        if self._world.setup.retention == "pin":
            kept = session.pinned if now < session.expires_at else 0
        else:
            kept = self._world.workers[session.decode].pool.held(session.index)
        size = self._size
        return min(job.matched, kept // size * size, (job.prompt - 1) // size * size)

    def _rewritten(self, session: Session, history: int) -> None:
        """The prompt leaves the session's tokens at `history`: what caches hold beyond is of no use."""
        for worker in session.places:
            self._world.workers[worker].pool.trim(session.index, history)
        session.held = tuple([h._replace(tokens=min(h.tokens, history)) for h in session.held])

    def _dispatch(self, now: float, job: Job, decision: Decision, placement: Round) -> None:
        world = self._world
        world.counts[f"reason:{decision.reason}"] += 1
        worker = world.workers[decision.worker]
        job.worker = worker.id
        job.path = LOCAL if decision.path == "local" else REMOTE if worker.role == "prefill" else DEFLECTED
        job.cost_s = decision.estimate_s
        if job.path != LOCAL and world.setup.prefill_history != "read":  # it computes more than a policy that reads would think
            reused = min(placement.held.get(worker.id, 0), job.prompt - 1)
            job.cost_s = self._believed.t_pre(reused, job.prompt - reused, worker.theta)
        job.task = PrefillTask(f"{job.index}.{job.number}", job.arrived, job.cost_s, placement.ttft_target_s)
        world.state.enqueue(worker.id, job.cost_s)
        worker.queue.put(now, job)

    def prefilled(self, now: float, job: Job) -> None:
        """A remote prefill is done; its decode leg begins a message later."""
        world = self._world
        pool = world.workers[job.worker].pool
        fresh = Held(job.worker, "", job.prompt, pool.written * pool.size)
        session = job.session
        session.held = (fresh, *[h for h in session.held if h.worker != job.worker])[:_MOST_HELD]
        world.loop.at(now + world.setup.delays.hop_s, self._to_decode, job)

    def _to_decode(self, now: float, job: Job) -> None:
        worker = self._world.workers[job.decode]
        if isinstance(worker, DecodeWorker):
            worker.submit(now, job)

    def ended(self, now: float, job: Job) -> None:
        """A round's last token has left."""
        del self.open[job.index]
        session = job.session
        session.context = job.prompt + job.output
        if session.number < len(session.rounds):
            begins = now + session.rounds[session.number].gap_s + self._world.setup.delays.decide_s
            self._world.loop.at(begins, self.decide, session)
        else:
            self._over(session)

    def _over(self, session: Session) -> None:
        if self._learns:
            self._world.lives.ended(session.number)
        self._left -= 1
        if not self._left:
            self._world.loop.ended = True
