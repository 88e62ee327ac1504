"""Rows of results/paper.json. Keys as in `ampd.simulator.results.report`; README and docs/experiments.md say what they mean."""

from __future__ import annotations

import math
from typing import Any

from ampd.simulator.experiments.goodput import Goodput, Trial
from ampd.simulator.experiments.paper_cell import Played, Scene
from ampd.simulator.experiments.paper_grid import Effort
from ampd.simulator.results.attainment import Measured

Row = dict[str, Any]

_DIGITS = 6


def rows_of(scene: Scene, policy: str, effort: Effort, played: Played) -> list[Row]:
    """The run at the goodput first, `best`, then the runs at other rates of the same deployment; study "rates"."""
    head = heading(scene, policy, effort) | {"study": "rates", "deployment": str(played.deployment or "none")}
    head |= {"settings": variant_text(played), "variant_number": played.variant_number, "simulated_rounds": played.rounds}
    head |= goodput_row(played.goodput)
    best = played.goodput.trial
    if best is None:
        nearest = max(played.trials, key=lambda t: t.measured.attainment, default=None)
        shown = trial_row(nearest) if nearest else {"rate": 0.0, "attainment": 0.0}
        return [rounded(head | shown | {"best": True})]
    others = [t for t in played.trials if t is not best]
    return [rounded(head | trial_row(best) | {"best": True}), *(rounded(head | trial_row(t) | {"best": False}) for t in others)]


def heading(scene: Scene, policy: str, effort: Effort) -> Row:
    """What all rows of a policy in a cell have in common."""
    cell, targets = scene.cell, scene.targets
    return {
        "hardware": cell.hardware,
        "model": cell.model,
        "trace": cell.trace,
        "policy": policy,
        "gpus": cell.gpus,
        "bound": scene.bound,
        "targets": targets.level,
        "ttft_target_s": targets.ttft_s,
        "itl_target_s": targets.itl_s,
        "unloaded_ttft_s": targets.unloaded_ttft_s,
        "batch8_itl_s": targets.batch_itl_s,
        "targets_theta": targets.theta,
        "effort": effort.name,
    }


def goodput_row(found: Goodput) -> Row:
    """Sessions a second, with its interval."""
    interval = found.interval
    return {"goodput": found.rate, "goodput_low": interval.low, "goodput_high": interval.high}


def trial_row(trial: Trial) -> Row:
    """A run."""
    measured: Measured = trial.measured
    return measured.row() | {
        "rate": trial.rate,
        "attainment_low": trial.interval.low,
        "attainment_high": trial.interval.high,
        "sustained": trial.sustained,
        "steady": trial.steady,
        "seeds": 1,
    }


def variant_text(played: Played) -> str:
    """The settings that were chosen beside the form's own."""
    return ", ".join(f"{key}={value}" for key, value in played.variant.items())


def rounded(row: Row) -> Row:
    """Figures to six significant digits, NaN and infinity as null: the file is for people and other programs."""
    return {key: _plain(value) for key, value in row.items()}


def _plain(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
