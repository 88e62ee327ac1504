"""How far a run is: a bar on a terminal, one line for each phase elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ampd.profiler.sampling import Progress as Report


@contextmanager
def points_progress(console: Console) -> Iterator[Report]:
    """A callback for `sampling.sample`: points done, points in all, what is measured now."""
    columns = (TextColumn("{task.description:<24}"), BarColumn(), MofNCompleteColumn(), TextColumn("points"), TimeElapsedColumn())
    if not console.is_terminal:
        yield _lines(console)
        return
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def report(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        yield report


def _lines(console: Console) -> Report:
    """Every tenth of the points at most, so that a log stays readable."""
    said = -1

    def report(done: int, total: int, what: str) -> None:
        nonlocal said
        tenth = 10 * done // max(total, 1)
        if tenth > said or "/" not in what:
            said = max(tenth, said)
            console.print(f"{done} of {total} points: {what}", highlight=False)

    return report
