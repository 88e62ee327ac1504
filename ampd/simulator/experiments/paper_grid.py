"""The paper's experiments: which cells, which policies, how much effort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ampd.simulator.experiments.candidates import Kind
from ampd.simulator.experiments.goodput import Length

HARDWARE = ("h200", "h20")
MODELS = ("llama-3.1-70b", "qwen3-32b", "mixtral-8x7b")
GPUS = {"toolbench": 8, "hotpotqa": 8, "dureader": 16, "gaia": 32}  # paper, section 7.1

DEFAULT = "predictive"
PAPER = "paper"
DYNAMO = ("dynamo_recompute", "dynamo_cache", "dynamo_read")


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One of the paper's plots."""

    hardware: str
    model: str
    trace: str

    @property
    def gpus(self) -> int:
        return GPUS[self.trace]

    @property
    def profile(self) -> str:
        """The file of its cost functions, in configs/profiles."""
        return f"{self.model}-{self.hardware}.json"

    @property
    def transport(self) -> str:
        """KV between workers of a single node takes NVLink; with more nodes than one all of it is taken to cross the network."""
        return "nvlink" if self.gpus <= 8 else "rdma"


CELLS = tuple(Cell(hardware, model, trace) for hardware in HARDWARE for model in MODELS for trace in GPUS)


@dataclass(frozen=True, slots=True)
class Entrant:
    """A policy that is compared: its form (`ampd.simulator.forms`), where it may prefill, and settings to choose the best of.

    A variant is what differs from the form's own: keys of section `policy`, `batched_tokens` of vLLM's own engines, `chunk` of a
    decode worker's step, `local_slots` and `prefill_tokens` of the setup.
    """

    name: str
    form: str
    kind: Kind
    variants: tuple[Mapping[str, Any], ...] = field(default=({},))


# vLLM's prefill workers share a step among prompts, or take one at a time (max_num_seqs 1), which is the better for long ones.
_SHARED_OR_NOT: tuple[Mapping[str, Any], ...] = ({}, {"prefill_tokens": 0})
_NOT_CACHED: Mapping[str, Any] = {"prefix_decider": {"non_cached_tokens": 512}}  # its default, 0, is never remote
_STEPS: tuple[Mapping[str, Any], ...] = ({"batched_tokens": 8192}, {"batched_tokens": 1024})

ENTRANTS = (
    Entrant(DEFAULT, "ampd", "anywhere", ({"chunk": 1024},)),
    Entrant(PAPER, "paper", "anywhere"),
    Entrant("dynamo_recompute", "dynamo_recompute", "recompute", _SHARED_OR_NOT),
    Entrant("dynamo_cache", "dynamo_cache", "remote", _SHARED_OR_NOT),
    Entrant("dynamo_read", "dynamo_read", "remote", _SHARED_OR_NOT),
    Entrant("conditional_disagg", "conditional_disagg", "anywhere", _SHARED_OR_NOT),
    Entrant("ppd", "ppd", "anywhere", _SHARED_OR_NOT),
    Entrant("prefix_decider", "prefix_decider", "anywhere", tuple({**_NOT_CACHED, **v} for v in _SHARED_OR_NOT)),
    Entrant("vllm", "vllm", "colocated", _STEPS),
    Entrant("continuum", "continuum", "colocated", _STEPS),
    Entrant("local_only", "local_only", "colocated"),
)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is spent on a policy in a cell; the same for every policy.

    `candidates` deployments race over `heats` runs of length `screen` at most, the winner then with its neighbours, `refinements`
    times at most; the best is then searched by runs of length `final`, to `resolution` rungs of 3 %.
    Runs of length `curve` show it at the rates of the others.
    """

    name: str
    cells: tuple[Cell, ...]
    candidates: int
    heats: int
    refinements: int
    screen: Length
    final: Length
    resolution: int
    curve: Length
    seed: int = 1


FULL = Effort("full", CELLS, 8, 5, 2, Length(600, 1.0), Length(), 2, Length(2500, 1.5))
# One model on the paper's own hardware.
_FIRST = tuple(cell for cell in CELLS if cell.model == MODELS[0] and cell.hardware == "h20")
QUICK = Effort("quick", _FIRST, 4, 4, 1, Length(400, 1.0), Length(1200), 4, Length(400, 1.0))
EFFORTS = {effort.name: effort for effort in (FULL, QUICK)}
