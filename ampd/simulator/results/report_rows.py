"""Rows of results: what sweeps and experiments write, and figures are drawn from.

A row is one policy on one deployment at one rate, its seeds folded. Only the names and the rate are always there: what a run
did not measure is null. Keys that are not known here are passed over, so that others may add theirs.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import msgspec

from ampd.errors import ConfigError
from ampd.simulator.experiments.goodput import ATTAINED, LATE
from ampd.simulator.results.confidence import student

Study = Literal["rates", "ablation", "sensitivity"]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Rates and goodput in sessions a second, seconds, shares of 1. `goodput` is the policy's on this deployment, the same in all
    rows of a curve; `bound` what the GPUs could serve at most. `variant` names the parts of the policy that are on (study
    "ablation"), `parameter` and `value` what was varied (study "sensitivity").
    """

    hardware: str
    model: str
    trace: str
    policy: str
    deployment: str
    rate: float
    goodput: float | None = None
    goodput_low: float | None = None
    goodput_high: float | None = None
    attainment: float | None = None
    attainment_low: float | None = None
    attainment_high: float | None = None
    study: Study = "rates"
    variant: str = ""
    parameter: str = ""
    value: float | None = None
    targets: str = ""
    seeds: int | None = None
    rounds: float | None = None
    sessions: float | None = None
    attainment_p95_itl: float | None = None
    session_attainment: float | None = None
    session_attainment_p95_itl: float | None = None
    very_late: float | None = None
    ttft_share: float | None = None
    itl_share: float | None = None
    ttft_mean_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    ttft_p99_s: float | None = None
    itl_mean_s: float | None = None
    itl_p50_s: float | None = None
    itl_p95_s: float | None = None
    itl_p99_s: float | None = None
    ttft_queue_s: float | None = None
    ttft_transfer_s: float | None = None
    ttft_compute_s: float | None = None
    share_local: float | None = None
    share_remote: float | None = None
    share_deflected: float | None = None
    ttft_target_s: float | None = None
    itl_target_s: float | None = None
    gpus: int | None = None
    bound: float | None = None


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """A file of rows; what else it holds is its writer's."""

    rows: list[Row]


def load_rows(path: Path) -> list[Row]:
    """Raises ConfigError in one line: no such file, no JSON, no rows, or a row without what every row has."""
    try:
        rows = msgspec.json.decode(path.read_bytes(), type=Results).rows
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; make it with `ampd sim sweep ... --out {path.name}`") from None
    except OSError as e:
        raise ConfigError(f"{path}: cannot be read: {e.strerror}") from None
    except msgspec.DecodeError as e:
        raise ConfigError(f'{path}: no results ({e}); expected JSON {{"rows": [...]}} as `ampd sim sweep` writes it') from None
    if not rows:
        raise ConfigError(f"{path}: rows is empty; there is nothing to draw")
    return rows


def fold_seeds(metrics: Sequence[Mapping[str, float | int | None]]) -> dict[str, Any]:
    """One row's metrics of a run for each seed: means, and the interval of the attainment by Student's t; counts are means too.

    Percentiles are averaged over seeds, not taken over all rounds.
    """
    keys = list(dict.fromkeys(key for one in metrics for key in one))
    folded: dict[str, Any] = {"seeds": len(metrics)}
    for key in keys:
        values = [one[key] for one in metrics if one.get(key) is not None]
        folded[key] = rounded(math.fsum(float(v) for v in values if v is not None) / len(values)) if values else None
    known = [one.get("attainment") for one in metrics]
    interval = student([math.nan if v is None else float(v) for v in known], 0.0, 1.0)
    folded |= {"attainment_low": rounded(interval.low), "attainment_high": rounded(interval.high)}
    return folded


def rounded(value: float) -> float | None:
    """To nine digits, which is below every sampling error and alike on every machine; None for NaN."""
    return None if math.isnan(value) else float(f"{value:.9g}")


def grid_goodput(rows: Iterable[Mapping[str, Any]]) -> float:
    """Of one curve: the highest rate that was run at which 90 % of rounds are attained and at most 1 % starved; 0 if none."""
    good = [
        float(row["rate"])
        for row in rows
        if (row["attainment"] or 0.0) >= ATTAINED and (row["very_late"] is None or row["very_late"] <= LATE)
    ]
    return max(good, default=0.0)


def rows_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line a row, null as an empty field; the columns are the keys of all rows as they first appear."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
