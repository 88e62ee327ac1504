"""What a text replay found: one summary, as a table for people and as JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from ampd.bench.replay import Replayed
from ampd.bench.terminal import make_table


@dataclass(frozen=True, slots=True)
class Summary:
    """Totals over rounds. Sizes in tokens; `short_history` and `wrong_history` count rounds whose ledger found less or more
    than the token ids of consecutive rounds share.
    """

    sessions: int
    rounds: int
    answered: int
    paths: dict[str, int]
    reasons: dict[str, int]
    prompt_tokens: int
    completion_tokens: int
    history_found_tokens: int
    true_history_tokens: int
    short_history: int
    wrong_history: int
    history_read_tokens: int  # KV read by prefill workers from decode workers
    increment_read_tokens: int  # KV read by decode workers from prefill workers
    recomputed: dict[str, int]
    cut: int  # rounds whose prompt was cut to fit the context
    cut_tokens: int
    miscounted: int  # rounds where the server counts other prompt tokens than the bench does
    compared: int
    differing: int
    seconds: float

    @property
    def ok(self) -> bool:
        """Every round answered and none differing."""
        return self.answered == self.rounds and self.differing == 0


def summarize(rounds: Sequence[Replayed], seconds: float) -> Summary:
    """Add up the rounds of a replay that took `seconds`."""
    facts = [r.result.facts for r in rounds if r.result.facts is not None]
    return Summary(
        sessions=len({r.result.session for r in rounds}),
        rounds=len(rounds),
        answered=sum(r.result.error is None for r in rounds),
        paths=dict(Counter(f.path for f in facts)),
        reasons=dict(Counter(f.reason for f in facts)),
        prompt_tokens=sum(len(r.prompt.token_ids) for r in rounds),
        completion_tokens=sum(r.result.completion_tokens for r in rounds),
        history_found_tokens=sum(f.l_hist for f in facts),
        true_history_tokens=sum(r.true_history or 0 for r in rounds),
        short_history=sum(r.short_history for r in rounds),
        wrong_history=sum(r.wrong_history for r in rounds),
        history_read_tokens=sum(f.history_read_tokens for f in facts),
        increment_read_tokens=sum(f.increment_read_tokens for f in facts),
        recomputed=dict(Counter(f.recompute for f in facts if f.recompute)),
        cut=sum(r.prompt.cut > 0 for r in rounds),
        cut_tokens=sum(r.prompt.cut for r in rounds),
        miscounted=sum(r.result.error is None and r.result.prompt_tokens != len(r.prompt.token_ids) for r in rounds),
        compared=sum(r.reference is not None for r in rounds),
        differing=sum(r.differs for r in rounds),
        seconds=round(seconds, 3),
    )


def as_json(rounds: Sequence[Replayed], summary: Summary) -> dict[str, Any]:
    """The summary's fields, `ok`, and one row a round."""
    return {"ok": summary.ok, **asdict(summary), "rows": [_row(r) for r in rounds]}


def _row(r: Replayed) -> dict[str, Any]:
    facts, reference = r.result.facts, r.reference
    return {
        "session": r.result.session,
        "round": r.result.number,
        "error": r.result.error,
        "path": facts.path if facts else None,
        "reason": facts.reason if facts else None,
        "prompt_tokens": len(r.prompt.token_ids),
        "cut_tokens": r.prompt.cut,
        "l_hist": facts.l_hist if facts else None,
        "true_history": r.true_history,
        "history_read_tokens": facts.history_read_tokens if facts else None,
        "increment_read_tokens": facts.increment_read_tokens if facts else None,
        "recompute": facts.recompute if facts else None,
        "ttft_s": r.result.ttft_s,
        "itl_s": r.result.itl_s,
        "text": r.result.text,
        "token_ids": r.result.token_ids,
        "reference_text": reference.text if reference else None,
        "reference_token_ids": reference.token_ids if reference else None,
        "reference_error": reference.error if reference else None,
        "differs": r.differs if reference else None,
    }


def print_report(console: Console, rounds: Sequence[Replayed], summary: Summary) -> None:
    """The table by session, the totals, and every round that failed, differs or disagrees on its history."""
    table = make_table("text replay")
    for name in ("session", "rounds", "local", "remote", "prompt", "history", "true", "P<-D", "D<-P", "failed", "differ"):
        table.add_column(name, justify="left" if name == "session" else "right")
    for session in dict.fromkeys(r.result.session for r in rounds):
        mine = summarize([r for r in rounds if r.result.session == session], 0.0)
        table.add_row(str(session)[:12], *_cells(mine))
    table.add_section()
    table.add_row("all", *_cells(summary))
    console.print(table)
    console.print("P<-D: history KV read by prefill workers, D<-P: increment KV read by decode workers, tokens")
    console.print(f"reasons: {_counts(summary.reasons)}; recomputed: {_counts(summary.recomputed)}")
    if summary.cut:
        console.print(f"{summary.cut} prompts were longer than the context and lost {summary.cut_tokens} tokens at their head")
    if summary.miscounted:
        console.print(f"{summary.miscounted} rounds were tokenised otherwise by the server: 'true' does not hold for them")
    for row in rounds:
        for fault in _faults(row):
            console.print(f"session {str(row.result.session)[:12]} round {row.result.number}: {fault}", markup=False)
    compared = f"{summary.differing} of {summary.compared} answers differ" if summary.compared else "not compared"
    console.print(
        f"{summary.answered} of {summary.rounds} rounds answered; {compared}; history short in {summary.short_history} rounds, "
        f"wrong in {summary.wrong_history}; {summary.seconds:.1f} s"
    )


def _cells(s: Summary) -> list[str]:
    values = (s.rounds, s.paths.get("local", 0), s.paths.get("remote", 0), s.prompt_tokens, s.history_found_tokens)
    more = (s.true_history_tokens, s.history_read_tokens, s.increment_read_tokens, s.rounds - s.answered)
    return [*(f"{v:,}" for v in (*values, *more)), f"{s.differing:,}" if s.compared else "-"]


def _faults(row: Replayed) -> list[str]:
    faults = []
    if row.result.error is not None:
        faults.append(f"failed: {row.result.error}")
    if row.reference is not None and row.reference.error is not None:
        faults.append(f"the plain engine failed: {row.reference.error}")
    elif row.differs and row.reference is not None:
        faults.append(f"differs: {row.result.text[:60]!r} against {row.reference.text[:60]!r}")
    if row.result.facts is not None and (row.short_history or row.wrong_history):
        faults.append(f"history found {row.result.facts.l_hist}, true {row.true_history}")
    return faults


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in sorted(counts.items(), key=lambda c: -c[1])) or "none"
