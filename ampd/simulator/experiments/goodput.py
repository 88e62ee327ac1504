"""Goodput: the highest stationary session rate at which 90 % of the rounds are attained.

Three conditions keep it honest; without them, an order that pushes late rounds last looks better by starving sessions:

- a warm-up of at least 2.5 session lifetimes before the first round is counted, by the lifetimes that the run then shows;
- at least 10,000 rounds are counted (fewer in a quick run, which is labelled so);
- at most 1 % of them are later than 10 times their TTFT target.

Rates are a ladder of 3 % steps down from the bound, and a pattern of arrivals is the same at every rate, only faster: policies and
deployments that are compared meet equal sessions in equal order at equal rates (common random numbers).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ampd.bench.traces import arriving, gamma
from ampd.errors import ConfigError
from ampd.policy.types import CostModel
from ampd.simulator.experiments.load import Load, load_of
from ampd.simulator.results.attainment import WARM_UP_LIFETIMES, Measured, Window, attainment_interval, measure, warm_up_s
from ampd.simulator.results.confidence import Interval
from ampd.simulator.simulate import Progress, simulate
from ampd.simulator.types import Setup, TraceSession

ATTAINED = 0.9
LATE = 0.01
ROUNDS = 10_000
STEP = 0.97  # between two rungs of the ladder of rates
_COARSE = 4  # rungs; what a bracket is found with


@dataclass(frozen=True, slots=True)
class Length:
    """How long a run is: rounds to count, and session lifetimes of warm-up."""

    rounds: int = ROUNDS
    lifetimes: float = WARM_UP_LIFETIMES


@dataclass(frozen=True, slots=True)
class Traffic:
    """The sessions that are served again and again, in order; `cv` of the times between their arrivals (1: Poisson)."""

    sessions: Sequence[TraceSession]
    seed: int = 0
    cv: float = 1.0

    def arrivals(self, rate: float, until_s: float) -> list[TraceSession]:
        """Sessions that arrive at `rate` a second until then. Raises ConfigError when there are too few of them."""
        times = gamma(rate, self.cv, len(self.sessions), self.seed)
        if times[-1] < until_s:
            raise ConfigError(
                f"sessions: {len(self.sessions)} are too few for {until_s:.0f} s at {rate:.3g} sessions/s; "
                f"generate {math.ceil(len(self.sessions) * until_s / times[-1])} or more"
            )
        count = int((times < until_s).sum())
        return arriving(self.sessions[:count], times[:count])


@dataclass(frozen=True, slots=True)
class Trial:
    """What a run at one rate showed. `steady`: the warm-up was long enough by the lifetimes of this very run."""

    rate: float
    measured: Measured
    interval: Interval
    steady: bool

    @property
    def sustained(self) -> bool:
        """Whether the rate is no more than the goodput."""
        m = self.measured
        return self.steady and m.rounds > 0 and m.attainment >= ATTAINED and m.very_late <= LATE


@dataclass(slots=True)
class Bench:
    """A setup under a load, tried at rates of a ladder. `rounds` counts all that were simulated; `believed`: see `simulate`."""

    setup: Setup
    cost: CostModel
    traffic: Traffic
    top: float  # the rate of rung 0: no rate above it can be sustained
    believed: CostModel | None = None
    seed: int = 0
    rounds: int = 0
    load: Load = field(init=False)
    _seen: dict[tuple[int, Length], Trial] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.load = load_of(self.traffic.sessions)

    def rate(self, rung: int) -> float:
        """Sessions a second."""
        return float(self.top * STEP**rung)

    def at(self, rung: int, length: Length) -> Trial:
        """Try a rate, once."""
        key = rung, length
        if key not in self._seen:
            self._seen[key] = self._run(self.rate(rung), length)
        return self._seen[key]

    def trials(self, length: Length) -> list[Trial]:
        """All runs of this length, by rate."""
        return sorted((t for (_, tried), t in self._seen.items() if tried == length), key=lambda t: t.rate)

    def _run(self, rate: float, length: Length) -> Trial:
        setup = self.setup
        warm_s = length.lifetimes * self.load.lifetime_s(setup.ttft_s, setup.itl_s)
        window = Window(warm_s, warm_s + 1.02 * length.rounds / (rate * self.load.rounds))
        # Arrivals go on until what arrived last in the window has had the time to be attained.
        until = window.end_s + 2 * setup.ttft_s + float(self.load.output.mean()) * setup.itl_s
        sessions = self.traffic.arrivals(rate, until)
        planned = until * rate * self.load.rounds
        stop = Hopeless(2 * LATE * planned)
        outcome = simulate(setup, self.cost, sessions, self.seed, until, believed=self.believed, stop=stop)
        self.rounds += len(outcome.records)
        seen = Window(0.0, window.end_s) if stop.met else window
        measured = measure(outcome, sessions, setup.ttft_s, setup.itl_s, seen)
        interval = attainment_interval(outcome, sessions, setup.ttft_s, setup.itl_s, seen)
        steady = not stop.met and warm_up_s(outcome, sessions, length.lifetimes) <= 1.001 * window.start_s
        return Trial(rate, measured, interval, steady)


@dataclass(slots=True)
class Hopeless:
    """Ends a run in which more than `late` rounds are far too late already: its rate cannot be sustained any more."""

    late: float
    met: bool = False

    def __call__(self, progress: Progress) -> bool:
        self.met = progress.late + progress.open_late > self.late
        return self.met


@dataclass(frozen=True, slots=True)
class Goodput:
    """`trial` is the run at the goodput, None when no rate was sustained; `beyond` is at the least rate that was not."""

    rate: float
    trial: Trial | None
    beyond: Trial | None

    @property
    def interval(self) -> Interval:
        """95 %: where attainment +- its interval crosses 90 %, by its slope over the rate between the two runs.

        At least the half of a rung wide on both sides, since goodput is known no better than that.
        """
        if self.trial is None or self.beyond is None:
            return Interval(self.rate, math.nan, math.nan)
        (a, b), span = (self.trial, self.beyond), math.log(self.beyond.rate / self.trial.rate)
        slope = max(a.measured.attainment - b.measured.attainment, 0.005) / span
        least = -math.log(STEP) / 2
        half = max((a.interval.high - a.interval.low) / 2 / slope, least) if a.interval.high > a.interval.low else least
        half = min(half, 0.5)
        return Interval(self.rate, self.rate * math.exp(-half), self.rate * math.exp(half))


def find_goodput(bench: Bench, start: int, length: Length, floor: int = 150, resolution: int = 1) -> Goodput:
    """Search the ladder from rung `start`: steps of four rungs until a rate is sustained and the next is not, then halving.

    `floor`: the rung below which nothing is looked for (150: a hundredth of the bound); `resolution` in rungs.
    """
    start = min(max(start, 1), floor)
    if bench.at(start, length).sustained:
        good, bad = start, max(start - _COARSE, 0)
        while bad > 0 and bench.at(bad, length).sustained:
            good, bad = bad, max(bad - _COARSE, 0)
    else:
        step, bad, good = _COARSE, start, start + _COARSE
        while not bench.at(good, length).sustained:
            if good >= floor:
                return Goodput(0.0, None, bench.at(good, length))
            step = min(2 * step, 16)
            bad, good = good, min(good + step, floor)
    while good - bad > resolution:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if bench.at(middle, length).sustained else (good, middle)
    return Goodput(bench.rate(good), bench.at(good, length), bench.at(bad, length) if bad > 0 else None)
