"""What a policy reads of its settings.

`ampd.config.Policy` has all of it. Policies may not import the configuration, so these protocols name its keys.
"""

from __future__ import annotations

from typing import Literal, Protocol

LocalPrefill = Literal["slack", "chunked", "exclusive"]


class PredictiveSettings(Protocol):
    """Section `policy.predictive`."""

    @property
    def margin(self) -> float: ...
    @property
    def near(self) -> float: ...
    @property
    def deflect(self) -> bool: ...


class ConditionalDisaggSettings(Protocol):
    """Section `policy.conditional_disagg`, Dynamo's own keys."""

    @property
    def policy(self) -> Literal["isl_bounding", "prefill_load", "isl_or_load"]: ...
    @property
    def eff_isl_threshold(self) -> int: ...
    @property
    def eff_isl_ratio_threshold(self) -> float: ...
    @property
    def prefill_busy_threshold(self) -> float | None: ...
    @property
    def decode_busy_threshold(self) -> float | None: ...
    @property
    def max_num_batched_tokens(self) -> int: ...


class PpdSettings(Protocol):
    """Section `policy.ppd`."""

    @property
    def bypass_threshold(self) -> int: ...


class PrefixDeciderSettings(Protocol):
    """Section `policy.prefix_decider`, llm-d's own keys."""

    @property
    def non_cached_tokens(self) -> int: ...
    @property
    def prompt_tokens(self) -> int: ...


class PolicySettings(Protocol):
    """Section `policy`, as far as routing reads it."""

    @property
    def name(self) -> str: ...
    @property
    def alpha(self) -> float: ...
    @property
    def beta(self) -> float: ...
    @property
    def local_prefill(self) -> LocalPrefill: ...
    @property
    def predictive(self) -> PredictiveSettings: ...
    @property
    def conditional_disagg(self) -> ConditionalDisaggSettings: ...
    @property
    def ppd(self) -> PpdSettings: ...
    @property
    def prefix_decider(self) -> PrefixDeciderSettings: ...
