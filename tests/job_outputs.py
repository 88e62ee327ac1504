"""What tests read of an engine's outputs."""

from __future__ import annotations

from dataclasses import dataclass, field

from ampd.workers.engines.base import EngineOutput


@dataclass
class Outputs:
    """All outputs of one job."""

    outputs: list[EngineOutput] = field(default_factory=list)

    @property
    def last(self) -> EngineOutput:
        return self.outputs[-1]

    @property
    def tokens(self) -> list[int]:
        return [t for o in self.outputs for t in o.output["token_ids"]]
