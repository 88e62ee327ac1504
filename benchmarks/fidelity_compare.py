"""The simulator's side of `benchmarks.fidelity`: recorded sessions served again in virtual time, and the two put side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from ampd.config import Graph
from ampd.cost_model import load_profile
from ampd.policy.types import CostModel, Direction
from ampd.simulator.simulate import simulate
from ampd.simulator.types import PATHS, Delays, Floats, Group, Outcome, Setup, TraceSession
from benchmarks.fidelity_load import Observed

# Measured at the Coordinator and the workers of a graph on one small machine, whose processes share the engines' cores.
_DELAYS = Delays(decide_s=0.004, hop_s=0.003, report_s=0.5)


FUNCTIONS = ("t_pre", "t_dec", "t_mixed", "t_kv")


class Recording(msgspec.Struct, frozen=True):
    """What was played at a rate, how it went, and the workers' calibration meanwhile, by role and function."""

    rate: float
    sessions: list[TraceSession]
    rounds: list[Observed]
    factors: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class Factored:
    """A cost model whose prefill workers and decode workers differ in speed, though not in theta: in its place stands `THETAS`."""

    cost: CostModel
    factors: dict[str, dict[str, float]]
    theta: int

    THETAS: ClassVar[dict[str, int]] = {"prefill": 1, "decode": 2}

    def _by(self, stand_in: int, fn: str) -> float:
        role = "prefill" if stand_in == self.THETAS["prefill"] else "decode"
        return self.factors.get(role, {}).get(fn, 1.0)

    def t_pre(self, l_hist: int, l_incr: int, theta: int) -> float:
        return self._by(theta, "t_pre") * self.cost.t_pre(l_hist, l_incr, self.theta)

    def t_dec(self, batch: int, context: int, theta: int) -> float:
        return self._by(theta, "t_dec") * self.cost.t_dec(batch, context, self.theta)

    def t_mixed(self, batch: int, context: int, chunk: int, theta: int) -> float:
        return self._by(theta, "t_mixed") * self.cost.t_mixed(batch, context, chunk, self.theta)

    def t_kv(self, tokens: int, theta_src: int, theta_dst: int, direction: Direction) -> float:
        return self._by(theta_dst, "t_kv") * self.cost.t_kv(tokens, self.theta, self.theta, direction)


def replay(graph: Graph, profile: Path, recording: Recording, plain: bool) -> Outcome:
    """The recorded sessions in the simulator. The graph's workers are of one theta."""
    loaded = load_profile(profile)
    groups = tuple(
        Group(w.role, Factored.THETAS[w.role], w.replicas, loaded.meta.kv_capacity_tokens, w.prefill_chunk) for w in graph.workers
    )
    targets = graph.targets
    setup = Setup(groups, targets.ttft_s, targets.itl_s, graph.policy, graph.model.block_size, graph.coordinator.replicas, _DELAYS)
    cost = Factored(loaded.cost_model(), {} if plain else recording.factors, graph.workers[0].tensor_parallel)
    return simulate(setup, cost, recording.sessions)


def compare(graph: Graph, recording: Recording, outcome: Outcome) -> dict[str, Any]:
    """TTFT and ITL, mean, median and 95th percentile, measured and simulated; path agreement round by round; attainment."""
    real = {name: np.array([getattr(r, name) for r in recording.rounds]) for name in ("ttft_s", "itl_s")}
    records = outcome.records
    simulated = {"ttft_s": records.ttft_s, "itl_s": records.itl_s}
    figures = {}
    for name, title in (("ttft_s", "TTFT"), ("itl_s", "ITL")):
        both = [values[~np.isnan(values)] for values in (real[name], simulated[name])]
        for form, figure in (("mean", np.mean), ("p50", np.median), ("p95", lambda v: np.quantile(v, 0.95))):
            figures[f"{title} {form}"] = (float(figure(both[0])), float(figure(both[1])))
    paths = dict(zip(zip(records.session.tolist(), records.number.tolist(), strict=True), records.path.tolist(), strict=True))
    agree = [PATHS[paths[r.session, r.number]] == r.path for r in recording.rounds]
    attained = [float(np.mean(_hit(graph, values["ttft_s"], values["itl_s"]))) for values in (real, simulated)]
    return {
        "rate": recording.rate,
        "rounds": len(recording.rounds),
        "figures": figures,
        "path_agreement": float(np.mean(agree)),
        "remote": [float(np.mean([r.path == "remote" for r in recording.rounds])), float(np.mean(records.path == 1))],
        "attained": attained,
    }


def _hit(graph: Graph, ttft_s: Floats, itl_s: Floats) -> Any:
    return (ttft_s <= graph.targets.ttft_s) & ~(itl_s > graph.targets.itl_s)


def plot(graph: Graph, recordings: list[Recording], outcomes: list[Outcome], folder: Path) -> None:
    """Distributions of TTFT and ITL, measured and simulated, a column for each rate; PNG and SVG."""
    from matplotlib.figure import Figure

    from ampd.bench.plot_style import print_style, save_figure

    with print_style():
        figure = Figure(figsize=(3.2 * len(recordings), 5), layout="constrained")
        axes = figure.subplots(2, len(recordings), squeeze=False)
        for column, (recording, outcome) in enumerate(zip(recordings, outcomes, strict=True)):
            for row, (name, title) in enumerate((("ttft_s", "TTFT"), ("itl_s", "ITL"))):
                panel = axes[row][column]
                real = np.sort([getattr(r, name) for r in recording.rounds])
                simulated = np.sort(getattr(outcome.records, name))
                for values, label, line in ((real, "measured", "-"), (simulated, "simulated", "--")):
                    panel.plot(values, np.linspace(0, 1, len(values)), line, label=label, color="black")
                panel.set_xlabel(f"{title}, s")
                panel.set_title(f"{recording.rate:g} sessions/s")
                panel.axvline(graph.targets.ttft_s if row == 0 else graph.targets.itl_s, color="0.6", linewidth=0.8)
        axes[0][0].set_ylabel("share of rounds")
        axes[0][0].legend()
        folder.mkdir(parents=True, exist_ok=True)
        save_figure(figure, folder / "fidelity")
