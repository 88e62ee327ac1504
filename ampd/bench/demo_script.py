"""The demo's script: on-call agents that look into incidents of a web shop. All texts are generated, the same on every run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Trigger = Literal["user", "tool"]

CHARS_PER_TOKEN = 2.6  # of these texts under the demo model's tokenizer; sizes need no more precision than this

_INCIDENTS = (
    ("checkout", "Customers say the checkout page takes ten seconds. Why is checkout slow?"),
    ("search", "Search returns products that are sold out. Why is the search index stale?"),
    ("login", "Many users cannot log in since this morning. Why do logins fail?"),
    ("inventory", "Stock counts differ between two warehouses. Why does the inventory drift?"),
    ("mail", "Order confirmations arrive hours late. Why is the mail queue slow?"),
    ("payments", "Some card payments are charged twice. Why are payments repeated?"),
    ("images", "Product images load slowly in Asia. Why are the images slow there?"),
    ("reports", "The nightly sales report is empty. Why did the report fail?"),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """What starts a round: a user's message, or a tool's result of about `tokens` tokens."""

    trigger: Trigger
    text: str


@dataclass(frozen=True, slots=True)
class Plot:
    """One session: its name, the system prompt, and the turns."""

    name: str
    system: str
    turns: Sequence[Turn]


def make_plots(sessions: int, opening_tokens: int) -> list[Plot]:
    """Sessions of seven rounds with tool results of very different sizes; each opens with a runbook of `opening_tokens` tokens."""
    return [_plot(i, opening_tokens) for i in range(sessions)]


def _plot(index: int, opening_tokens: int) -> Plot:
    name, question = _INCIDENTS[index % len(_INCIDENTS)]
    label = name if index < len(_INCIDENTS) else f"{name}-{index // len(_INCIDENTS) + 1}"
    rng = random.Random(index)
    turns = (
        Turn("user", f"Runbook of the {name} service:\n{_log(rng, name, opening_tokens)}\n\n{question} Begin with a plan."),
        Turn("tool", _log(rng, name, 400)),
        Turn("tool", _table(rng, 60)),
        Turn("tool", _log(rng, name, 700)),
        Turn("user", "What do you think is the most likely cause so far?"),
        Turn("tool", _table(rng, 250)),
        Turn("user", f"Write one sentence for the {name} team that says what to do next."),
    )
    return Plot(label, f"You are the on-call engineer of the {name} service of a web shop. Answer briefly.", turns)


def _log(rng: random.Random, name: str, tokens: int) -> str:
    events = ("request served", "cache miss", "retry after timeout", "connection reset by peer", "slow query", "worker restarted")
    lines: list[str] = []
    while sum(map(len, lines)) < tokens * CHARS_PER_TOKEN:
        when = f"{rng.randrange(24):02}:{rng.randrange(60):02}:{rng.randrange(60):02}"
        lines.append(f"{when} {name}-{rng.randrange(9)} {rng.choice(events)} in {rng.randrange(5, 9000)} ms\n")
    return "".join(lines)


def _table(rng: random.Random, tokens: int) -> str:
    rows = ["host,cpu,memory,errors\n"]
    while sum(map(len, rows)) < tokens * CHARS_PER_TOKEN:
        rows.append(f"host-{rng.randrange(40)},{rng.randrange(100)}%,{rng.randrange(64)} GiB,{rng.randrange(500)}\n")
    return "".join(rows)
