"""The values of `ampd sim`'s options, read from text. Every error is one line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import yaml

from ampd.errors import ConfigError
from ampd.simulator.commands.scenario import Scenario, check_form
from ampd.simulator.commands.sweep import Vary
from ampd.simulator.forms import COLOCATED

_MOST_RATES = 1000


def read_rates(text: str) -> tuple[float, ...]:
    """`0.5,1,2` or `0.5:2:0.5` (from, to, step; both ends in it), in rising order. Raises ConfigError."""
    try:
        if ":" in text:
            low, high, step = map(float, text.split(":"))
            if not (step > 0 and math.isfinite(high - low) and (high - low) / step < _MOST_RATES):
                raise ValueError
            rates = [round(low + i * step, 9) for i in range(math.floor((high - low) / step + 1e-9) + 1)]
        else:
            rates = [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--rates {text!r}: expected rates as 0.5,1,2 or from:to:step as 0.5:2:0.5") from None
    for rate in rates:
        if not (math.isfinite(rate) and rate > 0):
            raise ConfigError(f"--rates {text!r}: {rate:g} is not above 0; give sessions a second")
    if not rates:
        raise ConfigError(f"--rates {text!r}: no rate lies between both ends")
    return tuple(sorted(set(rates)))


def read_vary(text: str) -> Vary:
    """`policy.alpha=0.8,0.9`; `policy.` may be left out. Raises ConfigError."""
    key, sep, values = text.partition("=")
    if not (sep and key and values):
        raise ConfigError(f"--vary {text!r}: expected KEY=VALUE,VALUE,... for example policy.alpha=0.8,0.9,1.0")
    return Vary(key.removeprefix("policy."), tuple(_value(part, f"--vary {text!r}") for part in values.split(",")))


def policy_keys(sets: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """What `--set` says of section `policy` below its name: this holds for every policy that is run."""
    split = [item.partition("=") for item in sets if item.startswith("policy.") and not item.startswith("policy.name=")]
    return tuple((key.removeprefix("policy."), _value(value, f"--set {key}")) for key, _, value in split)


def pairs_of(scenario: Scenario, policies: Sequence[str], deployments: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Each policy with each of its deployments. A colocated policy has those without prefill workers.

    Raises ConfigError for a policy or deployment that does not exist, and for a policy without any deployment.
    """
    roles = {name: {group.role for group in scenario.groups(name)} for name in deployments}
    pairs = []
    for policy in map(check_form, policies):
        own = [name for name in deployments if policy not in COLOCATED or roles[name] == {"decode"}]
        if not own:
            raise ConfigError(f"--policy {policy!r}: its engines are colocated, but every deployment has prefill workers; "
                              "add one as --deployment 'D:<TP=2,DP=4>'")  # fmt: skip
        pairs += [(policy, name) for name in own]
    return tuple(pairs)


def _value(text: str, where: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigError(f"{where}: {text!r} is not valid YAML") from None
