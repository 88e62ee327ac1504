"""Beside the grid, on deployments that it found: ablation, sensitivity, a cost model that is wrong by 10 %, bursty arrivals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ampd.policy.types import CostModel, Direction
from ampd.simulator.experiments.deployments import parse_deployment
from ampd.simulator.experiments.goodput import Bench, find_goodput
from ampd.simulator.experiments.paper_cell import Scene, bench_of, rung_of
from ampd.simulator.experiments.paper_grid import CELLS, DEFAULT, ENTRANTS, PAPER, Cell, Effort
from ampd.simulator.experiments.paper_rows import Row, goodput_row, heading, rounded, trial_row

_BY_NAME = {entrant.name: entrant for entrant in ENTRANTS}
_FCFS: Mapping[str, Any] = {"name": "fcfs", "window": 3}
_AMPD: Mapping[str, Any] = {"name": "ampd", "window": 3}
_RATES = (0.8, 1.0, 1.2)  # of the goodput
_CURVE = (0.25, 0.5, 0.7, 0.85, 1.0, 1.2)  # of ampd's goodput
ERROR = 0.1

# What is varied, of which policy: the keys of section `policy` for each value.
PARAMETERS: Mapping[str, tuple[str, Sequence[float]]] = {
    "alpha": (PAPER, (0.3, 0.6, 0.9, 1.2, 2.0)),
    "beta": (PAPER, (0.4, 0.6, 0.85, 1.0, 1.5)),
    "w": (PAPER, (1, 2, 3, 4, 5)),
    "window_s": (PAPER, (1.0, 3.0, 10.0, 30.0)),
    "margin": (DEFAULT, (0.6, 0.7, 0.8, 0.9, 1.0)),
}


@dataclass(frozen=True, slots=True)
class Study:
    """A study of one policy in one cell, at and around a rate. `value`: of the parameter; of a curve, the policy's own goodput."""

    kind: str  # "curve", "ablation", "sensitivity", "cost_error", "bursty"
    cell: Cell
    policy: str
    deployment: str
    variant: int  # of the policy's
    rate: float
    parameter: str = ""
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class Mistaken:
    """A cost model whose functions are wrong, each by a factor of its own."""

    cost: CostModel
    pre: float
    dec: float
    mixed: float
    kv: float

    def t_pre(self, l_hist: int, l_incr: int, theta: int) -> float:
        return self.pre * self.cost.t_pre(l_hist, l_incr, theta)

    def t_dec(self, batch: int, context: int, theta: int) -> float:
        return self.dec * self.cost.t_dec(batch, context, theta)

    def t_mixed(self, batch: int, context: int, chunk: int, theta: int) -> float:
        return self.mixed * self.cost.t_mixed(batch, context, chunk, theta)

    def t_kv(self, tokens: int, theta_src: int, theta_dst: int, direction: Direction) -> float:
        return self.kv * self.cost.t_kv(tokens, theta_src, theta_dst, direction)


def studies_of(best: Sequence[Row], models: Sequence[str]) -> list[Study]:
    """What to study, given the grid's best rows: on the first of the models that is there."""
    at = {(r["hardware"], r["model"], r["trace"], r["policy"]): r for r in best if r["goodput"] > 0}
    model = next((m for m in models if any(r["model"] == m for r in best)), "")
    found: list[Study] = []
    for cell in (c for c in CELLS if c.model == model):
        rows = {policy: at[cell.hardware, cell.model, cell.trace, policy] for policy in _BY_NAME
                if (cell.hardware, cell.model, cell.trace, policy) in at}  # fmt: skip
        found += _studies_in(cell, rows)
    return found


def _studies_in(cell: Cell, rows: Mapping[str, Row]) -> list[Study]:
    found = []

    def add(kind: str, policy: str, of: str, parameter: str = "", value: float = 0.0) -> None:
        row = rows[of]
        variant = row["variant_number"] if of == policy else 0
        found.append(Study(kind, cell, policy, row["deployment"], variant, row["goodput"], parameter, value))

    if DEFAULT in rows:
        # All policies at the same rates: what a figure of attainment over rate wants.
        for policy, row in rows.items():
            found.append(
                Study("curve", cell, policy, row["deployment"], row["variant_number"], rows[DEFAULT]["goodput"], "", row["goodput"])
            )
    if cell.trace in ("dureader", "gaia"):
        # Only a deployment with prefill workers shows what each part is worth.
        if "dynamo_read" in rows:
            for policy in (DEFAULT, PAPER):
                add("ablation", policy, "dynamo_read")
        for parameter, (policy, values) in PARAMETERS.items():
            if policy in rows and cell.hardware == "h20":  # the paper's hardware
                for value in values:
                    add("sensitivity", policy, policy, parameter, value)
    for policy in (DEFAULT, PAPER):
        if policy in rows:
            add("cost_error", policy, policy, "cost_error", ERROR)
    if cell.hardware == "h200":
        for policy in (DEFAULT, PAPER, "dynamo_read", "vllm"):
            for cv in (2.0, 4.0):
                if policy in rows:
                    add("bursty", policy, policy, "arrival_cv", cv)
    return found


def compute_study(scene: Scene, study: Study, effort: Effort) -> list[Row]:
    """The study's rows."""
    head = heading(scene, study.policy, effort) | {"deployment": study.deployment}
    match study.kind:
        case "curve":
            return _curve(scene, study, effort, head)
        case "ablation":
            return _ablation(scene, study, effort, head)
        case "sensitivity":
            bench = _bench(scene, study, effort, study.policy, _settings(study))
            return [_at(bench, scene, study, effort, study.rate, head)]
        case "cost_error":
            # The worst of mixtures for a choice between local and remote: what the two sides take errs in opposite directions.
            wrong = Mistaken(scene.cost, 1 + ERROR, 1 - ERROR, 1 + ERROR, 1 - ERROR)
            return [_goodput(_bench(scene, study, effort, study.policy, {}, believed=wrong), scene, study, effort, head)]
        case "bursty":
            return [_goodput(_bench(scene, study, effort, study.policy, {}, cv=study.value), scene, study, effort, head)]
        case kind:
            raise ValueError(f"study {kind!r} is none")


def _bench(
    scene: Scene,
    study: Study,
    effort: Effort,
    form: str,
    settings: Mapping[str, Any],
    *,
    believed: CostModel | None = None,
    cv: float = 1.0,
) -> Bench:
    entrant, deployment = _BY_NAME[form], parse_deployment(study.deployment)
    variant = {**entrant.variants[study.variant if form == study.policy else 0], **settings}
    return bench_of(scene, entrant, deployment, variant, scene.traffic(effort.final, cv), believed)


def _settings(study: Study) -> Mapping[str, Any]:
    match study.parameter:
        case "w":
            return {"reorder": {"name": "ampd", "window": int(study.value)}}
        case "margin":
            return {"predictive": {"margin": study.value}}
        case name:
            return {name: study.value}


def _curve(scene: Scene, study: Study, effort: Effort, head: Row) -> list[Row]:
    """The policy at the rates of all."""
    entrant, deployment = _BY_NAME[study.policy], parse_deployment(study.deployment)
    bench = bench_of(scene, entrant, deployment, entrant.variants[study.variant], scene.traffic(effort.curve))
    trials = [bench.at(rung_of(scene, share * study.rate), effort.curve) for share in _CURVE]
    return [rounded(head | trial_row(t) | {"study": "rates", "best": False, "goodput": study.value}) for t in trials]


def _ablation(scene: Scene, study: Study, effort: Effort, head: Row) -> list[Row]:
    """Routing or none of it (every prefill remote), with the queue reordered or first come first served."""
    parts = {
        "none": ("dynamo_read", _FCFS), "routing": (study.policy, _FCFS),
        "reordering": ("dynamo_read", _AMPD), "both": (study.policy, _AMPD),
    }  # fmt: skip
    found = []
    for variant, (form, reorder) in parts.items():
        bench = _bench(scene, study, effort, form, {"reorder": reorder})
        for share in _RATES:
            trial = bench.at(rung_of(scene, share * study.rate), effort.final)
            found.append(rounded(head | trial_row(trial) | {"study": "ablation", "variant": variant, "goodput": None}))
    return found


def _at(bench: Bench, scene: Scene, study: Study, effort: Effort, rate: float, head: Row) -> Row:
    trial = bench.at(rung_of(scene, rate), effort.final)
    return rounded(head | trial_row(trial) | _varied(study) | {"goodput": None})


def _goodput(bench: Bench, scene: Scene, study: Study, effort: Effort, head: Row) -> Row:
    """Searched anew, and beside it the goodput without the disturbance."""
    found = find_goodput(bench, rung_of(scene, study.rate), effort.final, resolution=effort.resolution)
    shown = trial_row(found.trial) if found.trial else {"rate": 0.0, "attainment": 0.0}
    return rounded(head | goodput_row(found) | shown | _varied(study) | {"undisturbed_goodput": study.rate})


def _varied(study: Study) -> Row:
    return {"study": "sensitivity", "parameter": study.parameter, "value": study.value}
