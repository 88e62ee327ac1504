"""What the bench commands print on."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

_FILE_WIDTH = 120  # columns when the output is no terminal, so that tables in logs are not broken at 80


def make_console(stderr: bool = False) -> Console:
    """Standard output, or standard error when standard output carries JSON."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=_FILE_WIDTH)


def make_table(title: str) -> Table:
    """A table narrow enough for a terminal of 80 to 100 columns."""
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)


def rounds_progress(console: Console) -> Progress:
    """A bar that counts rounds: on a terminal only, gone when done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
