"""What the paper's four traces look like: its means where it gives them, stated assumptions where it does not (docs/traces.md)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ampd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Tool:
    """What runs between two rounds, and how long: lognormal with this mean and standard deviation, in seconds.

    `share`: of the trace's gaps.
    """

    name: str
    share: float
    mean_s: float
    sd_s: float

    @property
    def sigma(self) -> float:
        """Of the logarithm."""
        return math.sqrt(math.log1p((self.sd_s / self.mean_s) ** 2))


@dataclass(frozen=True, slots=True)
class Length:
    """Tokens that the sessions of a trace have on average, in total.

    `known`: from the paper, so that its other reading, a round's mean, multiplies it by the rounds of a session; what is assumed
    here is assumed of a session whatever the reading. `edge`: the share of the one round unlike the others, the first for prompts
    (instructions, tool descriptions, question), the last for answers. Sigmas are of the logarithm: lengths are lognormal.
    """

    mean: float
    known: bool
    edge: float
    edge_sigma: float
    sigma: float


@dataclass(frozen=True, slots=True)
class Shape:
    """A trace. Rounds are `least_rounds` plus a negative binomial of shape `dispersion`; infinite: exactly `rounds`."""

    rounds: float
    least_rounds: int
    dispersion: float
    prefill: Length
    decode: Length
    tools: tuple[Tool, ...]


# Tool times of Continuum (arXiv 2511.02230, table of its traces): 1923 ± 2133 ms in BFCL v4 (web search), 925 ± 3550 ms in
# SWE-Bench (a shell).
_SEARCH = (1.923, 2.133)
_SHELL = (0.925, 3.550)
_RETRIEVAL = (Tool("retrieve", 1.0, 1.0, 0.5),)

# Rounds, prefill lengths, and GAIA's decode length: AMPD, section 7.1 and appendix B. All else is assumed.
SHAPES: dict[str, Shape] = {
    "toolbench": Shape(
        rounds=3.96, least_rounds=2, dispersion=2.0,
        prefill=Length(703, known=True, edge=0.6, edge_sigma=0.35, sigma=0.8),
        decode=Length(240, known=False, edge=0.4, edge_sigma=0.5, sigma=0.5),
        tools=(Tool("api", 1.0, *_SEARCH),),
    ),
    "gaia": Shape(
        rounds=11.32, least_rounds=2, dispersion=3.0,
        prefill=Length(6161, known=True, edge=0.3, edge_sigma=0.4, sigma=1.0),
        decode=Length(528, known=True, edge=0.1, edge_sigma=0.6, sigma=0.7),
        tools=(Tool("search", 0.45, *_SEARCH), Tool("visit", 0.3, *_SEARCH), Tool("python", 0.25, *_SHELL)),
    ),
    "hotpotqa": Shape(
        rounds=4, least_rounds=4, dispersion=math.inf,
        prefill=Length(840, known=False, edge=1 / 7, edge_sigma=0.3, sigma=0.4),
        decode=Length(256, known=False, edge=0.4, edge_sigma=0.5, sigma=0.4),
        tools=_RETRIEVAL,
    ),
    "dureader": Shape(
        rounds=4, least_rounds=4, dispersion=math.inf,
        prefill=Length(3081, known=True, edge=0.05, edge_sigma=0.3, sigma=0.5),
        decode=Length(400, known=False, edge=0.55, edge_sigma=0.5, sigma=0.4),
        tools=_RETRIEVAL,
    ),
}  # fmt: skip


def find_shape(name: str) -> Shape:
    """Raises ConfigError for a name that is none of SHAPES."""
    shape = SHAPES.get(name)
    if shape is None:
        raise ConfigError(f"trace: no generator '{name}'; choose one of {', '.join(SHAPES)}")
    return shape
