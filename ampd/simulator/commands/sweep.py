"""Many simulations: policies x rates x deployments x traces x seeds, and what differs from a policy in one setting.

The order of points, rows and bytes depends on what is asked for alone: not on how many processes computed it, nor on what an
earlier run had computed already.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import msgspec

from ampd.config import build_graph
from ampd.simulator.commands.run import run_once
from ampd.simulator.commands.scenario import Rules, Scenario, deployment_name, load_scenario
from ampd.simulator.commands.sweep_journal import Metrics, SweepJournal
from ampd.simulator.commands.sweep_pool import run_points
from ampd.simulator.commands.workload import Workload
from ampd.simulator.experiments.bound import bound_rate
from ampd.simulator.experiments.deployments import feasible_thetas, longest_context
from ampd.simulator.experiments.load import load_of
from ampd.simulator.results.attainment import Measured
from ampd.simulator.results.report_rows import fold_seeds, grid_goodput, rounded

FORMAT = "ampd-sim-sweep"
VERSION = 1
_ABLATION: dict[str, dict[str, Any]] = {
    "none": {"name": "dynamo", "reorder.name": "fcfs"},
    "routing": {"reorder.name": "fcfs"},
    "reordering": {"name": "dynamo"},
    "both": {},
}
_STUDIED = ("", "ampd", "predictive", "paper")
# What figures call a key; others have their own name.
_PARAMETERS = {"reorder.window": "w"}


@dataclass(frozen=True, slots=True)
class Vary:
    """One setting of section `policy` and the values that it takes in turn, everything else as it is."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is asked for. `pairs`: each policy with each of its deployments, "" being the graph's own. `keys` are laid over all
    policies.
    """

    graph: dict[str, Any]
    traces: tuple[str, ...]
    rates: tuple[float, ...]
    pairs: tuple[tuple[str, str], ...] = (("", ""),)
    seeds: tuple[int, ...] = (1, 2, 3)
    keys: tuple[tuple[str, Any], ...] = ()
    vary: tuple[Vary, ...] = ()
    ablation: bool = False
    duration_s: float | None = None
    rounds: int | None = None
    warm_s: float | None = None
    reading: Literal["total", "round"] = "total"
    cv: float = 1.0
    targets: str = ""


class Study(msgspec.Struct, frozen=True):
    """What a row is for; see `report_rows.Row`."""

    study: str = "rates"
    variant: str = ""
    parameter: str = ""
    value: float | None = None


class Point(msgspec.Struct, frozen=True):
    """One simulation, or (without a `policy`: None) the upper bound of its workload. `code`: digest of profile, trace and code."""

    graph: dict[str, Any]
    trace: str
    rate: float
    policy: str | None
    deployment: str
    keys: list[tuple[str, Any]]
    seed: int
    duration_s: float | None
    rounds: int | None
    warm_s: float | None
    reading: Literal["total", "round"]
    cv: float
    targets: str
    code: str


class Line(msgspec.Struct, frozen=True):
    """A row to be: its points, one a seed."""

    trace: str
    rate: float
    policy: str
    deployment: str
    study: Study
    points: list[Point]


def lines_of(sweep: Sweep, codes: dict[str, str]) -> list[Line]:
    """All rows in their order. `codes`: the digest of each trace's results.

    The peers' rules have neither ampd's routing nor its reordering: ablation and sensitivity are of the other policies.
    """
    plain: list[tuple[Study, dict[str, Any]]] = [(Study(), {})]
    studies = list(plain)
    studies += [(Study("ablation", variant), keys) for variant, keys in _ABLATION.items() if sweep.ablation]
    for vary in sweep.vary:
        name = _PARAMETERS.get(vary.key, vary.key)
        studies += [
            (Study("sensitivity", f"{name}={value}", name, _number(value)), {vary.key: value}) for value in vary.values
        ]  # fmt: skip
    return [
        Line(trace, rate, policy, deployment, study, [_point(sweep, trace, rate, policy, deployment, keys, seed, codes[trace])
                                                      for seed in sweep.seeds])
        for trace in sweep.traces
        for policy, deployment in sweep.pairs
        for study, keys in (studies if policy in _STUDIED else plain)
        for rate in sweep.rates
    ]  # fmt: skip


def _point(
    sweep: Sweep, trace: str, rate: float, policy: str | None, deployment: str, keys: dict[str, Any], seed: int, code: str
) -> Point:  # fmt: skip
    return Point(
        graph=sweep.graph, trace=trace, rate=rate, policy=policy, deployment=deployment, seed=seed, code=code,
        keys=sorted((dict(sweep.keys) | keys).items()), duration_s=sweep.duration_s, rounds=sweep.rounds, warm_s=sweep.warm_s,
        reading=sweep.reading, cv=sweep.cv, targets=sweep.targets,
    )  # fmt: skip


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def run_sweep(
    sweep: Sweep, codes: dict[str, str], journal: SweepJournal, jobs: int, progress: Callable[[int, int], None]
) -> dict[str, Any]:  # fmt: skip
    """Compute what the journal lacks, and return the document. `progress` is told how many points of all are known.

    Raises ConfigError for what cannot be simulated; what was computed before that is in the journal.
    """
    lines = lines_of(sweep, codes)
    bounds = {(line.trace, line.deployment): _bound_point(sweep, line, codes) for line in lines}
    keyed = {point_key(point): point for point in (*bounds.values(), *(p for line in lines for p in line.points))}
    todo = [key for key in keyed if key not in journal.done]
    known = len(keyed) - len(todo)
    progress(known, len(keyed))

    def done(index: int, metrics: Metrics) -> None:
        nonlocal known
        journal.add(todo[index], metrics)
        known += 1
        progress(known, len(keyed))

    run_points(compute, [keyed[key] for key in todo], jobs, done)
    return _document(sweep, lines, bounds, journal.done)


def _bound_point(sweep: Sweep, line: Line, codes: dict[str, str]) -> Point:
    """The rate does not matter to it, but decides how much of a trace is looked at: always the first."""
    return _point(sweep, line.trace, sweep.rates[0], None, line.deployment, {}, sweep.seeds[0], codes[line.trace])


def compute(point: Point) -> Metrics:
    """A point's metrics, in any process."""
    scenario = _scenario(msgspec.json.encode(point.graph))
    workload = Workload(point.trace, point.rate, point.duration_s, point.rounds, point.reading, point.cv)
    sessions, end_s = workload.sessions(point.seed)
    rules = Rules(point.policy or "", tuple((key, value) for key, value in point.keys), point.deployment, point.targets)
    if point.policy is None:
        groups = scenario.groups(point.deployment)
        gpus = sum(group.theta * group.replicas for group in groups)
        longest = longest_context(sessions)
        capacity = feasible_thetas(scenario.profile, longest, gpus)
        capacity |= {g.theta: max(g.kv_tokens, capacity.get(g.theta, 0)) for g in groups}
        _, itl_s = scenario.targets(point.targets, sessions)
        return {"bound": rounded(bound_rate(load_of(sessions), scenario.cost, capacity, gpus, itl_s)), "gpus": gpus}
    setup = scenario.setup(rules, sessions)
    run = run_once(setup, scenario.cost, sessions, end_s, point.seed, point.warm_s)
    targets = {"ttft_target_s": rounded(setup.ttft_s), "itl_target_s": rounded(setup.itl_s)}
    return _plain(run.measured) | targets | {"warm_up_short": int(run.short)}


def _plain(measured: Measured) -> Metrics:
    return {key: rounded(value) if isinstance(value, float) else value for key, value in measured.row().items()}


@lru_cache(maxsize=4)
def _scenario(graph: bytes) -> Scenario:
    """A process reads a profile once."""
    return load_scenario(build_graph(msgspec.json.decode(graph)))


def point_key(point: Point) -> str:
    """A digest of all that decides the point's metrics."""
    return hashlib.blake2b(msgspec.json.encode(point, order="sorted"), digest_size=16).hexdigest()


def _document(
    sweep: Sweep, lines: Sequence[Line], bounds: dict[tuple[str, str], Point], done: dict[str, Metrics]
) -> dict[str, Any]:  # fmt: skip
    scenario = load_scenario(build_graph(sweep.graph))
    names = {name: name or deployment_name(scenario.groups()) for _, name in sweep.pairs}
    own = scenario.graph.policy.name
    curves: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    rows = []
    for line in lines:
        bound = done[point_key(bounds[line.trace, line.deployment])]
        row = {
            "hardware": scenario.profile.meta.device, "model": scenario.profile.meta.model, "trace": Workload(line.trace).name,
            "policy": line.policy or own, "deployment": names[line.deployment], "goodput": None, "rate": line.rate,
        }  # fmt: skip
        row |= fold_seeds([done[point_key(point)] for point in line.points])
        row |= {"gpus": bound["gpus"], "bound": bound["bound"], "targets": sweep.targets, **msgspec.structs.asdict(line.study)}
        rows.append(row)
        curves.setdefault((line.trace, line.policy, line.deployment, line.study.study, line.study.variant), []).append(row)
    for curve in curves.values():
        for row in curve:
            row["goodput"] = grid_goodput(curve)
    return {"format": FORMAT, "version": VERSION, "seeds": list(sweep.seeds), "rows": rows}
