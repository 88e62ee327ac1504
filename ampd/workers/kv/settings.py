"""What ampd's classes inside the engine process are told: a section of vLLM's `kv_connector_extra_config`. Imports no vLLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ampd.cost_model import CoarseCostModel, PiecewiseCostModel, load_profile
from ampd.policy.types import CostModel

_SECTION = "ampd"

LocalPrefill = Literal["slack", "chunked", "exclusive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvSettings:
    """`prefill_chunk` and `theta` (tensor parallel) are the worker's, the others the graph's."""

    local_prefill: LocalPrefill
    itl_target_s: float
    prefill_chunk: int
    theta: int
    profile: str | None
    foreign_profile: bool = False

    def section(self) -> dict[str, Any]:
        """The entries for `kv_connector_extra_config`."""
        return {_SECTION: asdict(self)}

    @classmethod
    def read(cls, extra_config: Mapping[str, Any]) -> KvSettings:
        """The inverse of `section`."""
        return cls(**extra_config[_SECTION])

    def cost_model(self) -> CostModel:
        """The profile's, or the coarse one. Raises ProfileError."""
        return CoarseCostModel() if self.profile is None else load_profile(self.profile).cost_model(foreign=self.foreign_profile)

    def read_times(self, cost: CostModel) -> CostModel:
        """`cost` if it knows T_kv for reads between workers of this theta, else the coarse one."""
        key = (self.theta, self.theta, "history")
        return CoarseCostModel() if isinstance(cost, PiecewiseCostModel) and key not in cost.transfer else cost
