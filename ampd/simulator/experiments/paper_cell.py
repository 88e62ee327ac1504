"""One policy in one cell: its deployment is searched, then its goodput there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ampd.bench.traces import generate, truncated
from ampd.config.schema import Policy
from ampd.cost_model import PiecewiseCostModel, load_profile
from ampd.cost_model.arrays import ArrayCostModel
from ampd.policy.types import CostModel
from ampd.simulator.experiments.bound import bound_rate
from ampd.simulator.experiments.candidates import Fluid
from ampd.simulator.experiments.deployments import Deployment, enumerate_deployments, feasible_thetas, neighbours
from ampd.simulator.experiments.goodput import STEP, Bench, Goodput, Length, Traffic, Trial, find_goodput
from ampd.simulator.experiments.load import load_of
from ampd.simulator.experiments.paper_grid import Cell, Effort, Entrant
from ampd.simulator.experiments.race import race
from ampd.simulator.experiments.targets import Level, Targets, derive_targets
from ampd.simulator.forms import BATCHED_TOKENS, setup_for
from ampd.simulator.types import Setup, TraceSession

_CONTEXT = 32_768  # Mixtral's; the same traces are replayed for all models
_SAMPLE = 2_000  # sessions that targets and bounds are derived from
_CHUNK = 512  # tokens of prefill beside a decode batch (workers[].prefill_chunk)
_SETUP_KEYS = ("local_slots", "prefill_tokens")  # of a variant, that are the setup's own
_START = 0.5  # of the fluid estimate: the first rate of a race


@dataclass(frozen=True, slots=True)
class Scene:
    """A cell's load, costs, targets and bound; the same for all policies. `capacity`: KV tokens by feasible theta."""

    cell: Cell
    cost: PiecewiseCostModel
    block_size: int
    capacity: dict[int, int]
    sample: list[TraceSession]
    targets: Targets
    bound: float
    seed: int

    def traffic(self, length: Length, cv: float = 1.0) -> Traffic:
        """Sessions enough for a run of this length at the bound."""
        load = load_of(self.sample)
        lifetime = load.lifetime_s(self.targets.ttft_s, self.targets.itl_s)
        beyond = 2 * self.targets.ttft_s + float(load.output.mean()) * self.targets.itl_s
        count = self.bound * (length.lifetimes * lifetime + beyond) + 1.02 * length.rounds / load.rounds
        spare = math.ceil(1.02 * count + 8 * cv * math.sqrt(count))
        return Traffic(truncated(generate(self.cell.trace, spare, self.seed), _CONTEXT), self.seed, cv)

    def setup(self, entrant: Entrant, deployment: Deployment, variant: Mapping[str, Any]) -> Setup:
        """The form of the entrant on this deployment, with the variant's settings."""
        made = setup_for(
            entrant.form,
            deployment.groups(self.capacity, chunk=variant.get("chunk", _CHUNK)),
            self.targets.ttft_s,
            self.targets.itl_s,
            policy=Policy(name="predictive") if entrant.form == "ampd" else None,
            block_size=self.block_size,
            batched_tokens=variant.get("batched_tokens", BATCHED_TOKENS),
        )
        fields = {key: variant[key] for key in _SETUP_KEYS if key in variant}
        settings = {key: value for key, value in variant.items() if key not in (*_SETUP_KEYS, "chunk", "batched_tokens")}
        policy = Policy.model_validate(made.policy.model_dump() | settings)
        return replace(made, policy=policy, **fields)


def scene_of(cell: Cell, profiles: Path, level: Level = "middle", seed: int = 1) -> Scene:
    """Raises ProfileError for a profile that is not there, ConfigError for one whose model does not fit the GPUs."""
    profile = load_profile(profiles / cell.profile)
    sample = truncated(generate(cell.trace, _SAMPLE, seed), _CONTEXT)
    load = load_of(sample)
    cost = PiecewiseCostModel(profile.t_pre, profile.t_dec, profile.t_kv, profile.t_mixed, transport=cell.transport)
    # The longest context of any sample of these traces is the truncated one.
    capacity = feasible_thetas(profile, _CONTEXT, cell.gpus)
    enumerate_deployments(list(capacity), cell.gpus)
    targets = derive_targets(sample, cost, list(capacity), level)
    bound = bound_rate(load, cost, capacity, cell.gpus, targets.itl_s)
    return Scene(cell, cost, profile.meta.block_size, capacity, sample, targets, bound, seed)


@dataclass(frozen=True, slots=True)
class Played:
    """What became of a policy in a cell. `deployment` None: none can meet the targets even when idle. `rounds` were simulated."""

    deployment: Deployment | None
    variant: Mapping[str, Any]
    goodput: Goodput
    trials: Sequence[Trial]
    rounds: int
    variant_number: int = 0  # among the entrant's


Candidate = tuple[Deployment, Mapping[str, Any]]


def fluid_of(scene: Scene) -> Fluid:
    """The estimator of what a deployment carries."""
    targets = scene.targets
    return Fluid(load_of(scene.sample), ArrayCostModel(scene.cost), scene.capacity, targets.ttft_s, targets.itl_s)


def candidates(scene: Scene, entrant: Entrant, count: int) -> list[Candidate]:
    """The most promising deployments; variants share the number of candidates."""
    every = enumerate_deployments(list(scene.capacity), scene.cell.gpus)
    best = fluid_of(scene).best(every, entrant.kind, max(1, count // len(entrant.variants)))
    return [(deployment, variant) for deployment in best for variant in entrant.variants]


def play(scene: Scene, entrant: Entrant, effort: Effort) -> Played:
    """Race the candidates, then the winner with its neighbours, then search the goodput of what is best."""
    named = candidates(scene, entrant, effort.candidates)
    if not named:
        return Played(None, {}, Goodput(0.0, None, None), (), 0)
    fluid, every = fluid_of(scene), enumerate_deployments(list(scene.capacity), scene.cell.gpus)
    screen, benches = scene.traffic(effort.screen), dict[str, Bench]()

    def run(these: Sequence[Candidate], rung: int, heats: int) -> tuple[Candidate, int]:
        """The winner of a race, and its rung. Benches are kept: what was run once is not run again."""
        for deployment, variant in these:
            if _name(deployment, variant) not in benches:
                benches[_name(deployment, variant)] = bench_of(scene, entrant, deployment, variant, screen)
        by_name = {_name(*one): one for one in these}
        won = race({name: benches[name] for name in by_name}, rung, effort.screen, heats)
        return by_name[won.name], won.rung

    best, rung = run(named, rung_of(scene, _START * max(fluid.rate(d, entrant.kind) for d, _ in named)), effort.heats)
    for _ in range(effort.refinements):
        near = [(d, best[1]) for d in neighbours(best[0], every) if fluid.rate(d, entrant.kind) > 0]
        before, (best, rung) = best, run([best, *near], max(1, rung - 4), 2)
        if best == before:
            break
    bench = bench_of(scene, entrant, *best, scene.traffic(effort.final))
    found = find_goodput(bench, rung, effort.final, resolution=effort.resolution)
    spent = bench.rounds + sum(b.rounds for b in benches.values())
    return Played(*best, found, bench.trials(effort.final), spent, entrant.variants.index(best[1]))


def _name(deployment: Deployment, variant: Mapping[str, Any]) -> str:
    return f"{deployment} {dict(variant)}"


def bench_of(
    scene: Scene,
    entrant: Entrant,
    deployment: Deployment,
    variant: Mapping[str, Any],
    traffic: Traffic,
    believed: CostModel | None = None,
) -> Bench:
    """The entrant on a deployment under traffic. `believed`: what it takes the costs to be, if not what they are."""
    return Bench(scene.setup(entrant, deployment, variant), scene.cost, traffic, scene.bound, believed, scene.seed)


def rung_of(scene: Scene, rate: float) -> int:
    """The ladder's rung nearest to a rate."""
    return max(0, round(math.log(min(rate, scene.bound) / scene.bound) / math.log(STEP)))
