"""The demo's table, one session's answers as text, and the JSON form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Console

from ampd.bench.demo import PlayedRound, both_paths
from ampd.bench.terminal import make_table


def print_demo(console: Console, sessions: Sequence[Sequence[PlayedRound]]) -> None:
    """Print every round, what the columns mean, and the first session's real answers."""
    table = make_table("rounds")
    for name in ("session", "round", "trigger", "path", "reason"):
        table.add_column(name)
    for name in ("l_hist", "l_incr", "TTFT", "ITL", "P<-D", "D<-P"):
        table.add_column(name, justify="right")
    for rounds in sessions:
        for played in rounds:
            table.add_row(*_cells(played))
        table.add_section()
    console.print(table)
    console.print("l_hist, l_incr: tokens of the prompt found as history and left to compute; TTFT in seconds, ITL in milliseconds")
    console.print("P<-D: history KV tokens the prefill worker read; D<-P: increment KV tokens the decode worker read")
    every = [r for rounds in sessions for r in rounds]
    if not both_paths(every):
        console.print(
            "Only one path occurred: the load did not bring the prefill workers past their TTFT gate; try more --sessions."
        )
    failed = [r for r in every if r.result.error is not None]
    for played in failed:
        console.print(f"{played.session} round {played.result.number} failed: {played.result.error}", markup=False)
    if sessions and sessions[0]:
        console.print(f"\nThe model's answers in session {sessions[0][0].session}:")
        for played in sessions[0]:
            text = " ".join(played.result.text.split())
            console.print(f"  {played.result.number}. ({played.trigger}) {text}", markup=False, highlight=False)


def _cells(played: PlayedRound) -> list[str]:
    result, facts = played.result, played.result.facts
    head = [played.session, str(result.number), played.trigger]
    if result.error is not None:
        return [*head, "failed", result.error[:40], *[""] * 6]
    if facts is None:
        return [*head, "?", "?", "", str(result.prompt_tokens), _number(result.ttft_s, 1, 2), _number(result.itl_s, 1e3, 1), "", ""]
    ttft = facts.ttft_s if facts.ttft_s is not None else result.ttft_s
    itl = facts.itl_s if facts.itl_s is not None else result.itl_s
    sizes = [f"{facts.l_hist:,}", f"{facts.l_incr:,}", _number(ttft, 1, 2), _number(itl, 1e3, 1)]
    return [*head, facts.path, facts.reason, *sizes, f"{facts.history_read_tokens:,}", f"{facts.increment_read_tokens:,}"]


def _number(value: float | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{value * factor:.{digits}f}"


def demo_json(sessions: Sequence[Sequence[PlayedRound]]) -> dict[str, Any]:
    """`failed`, `both_paths`, and one row a round."""
    every = [r for rounds in sessions for r in rounds]
    return {
        "failed": sum(r.result.error is not None for r in every),
        "both_paths": both_paths(every),
        "rows": [
            {
                "session": r.session,
                "round": r.result.number,
                "trigger": r.trigger,
                "error": r.result.error,
                "text": r.result.text,
                "client_ttft_s": r.result.ttft_s,
                "client_itl_s": r.result.itl_s,
                "ampd": msgspec.to_builtins(r.result.facts) if r.result.facts is not None else None,
            }
            for r in every
        ],
    }
