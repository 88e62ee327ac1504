"""What a start or stop shows: a live table on a terminal, plain lines elsewhere, nothing in a library."""

from __future__ import annotations

import time
from typing import Literal, Protocol

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

State = Literal["starting", "ready", "stopped", "died"]
_STYLE = {"starting": "yellow", "ready": "green", "stopped": "dim", "died": "red"}


class Progress(Protocol):
    """Hears of every change."""

    def state(self, name: str, state: State, seconds: float) -> None:
        """A process changed its state after `seconds`."""

    def note(self, text: str) -> None:
        """Something else happened that a person wants to know."""

    def close(self) -> None:
        """Nothing follows for now; the terminal may be used by others."""


class Quiet:
    """Shows nothing."""

    def state(self, name: str, state: State, seconds: float) -> None: ...

    def note(self, text: str) -> None: ...

    def close(self) -> None: ...


class Lines:
    """One plain line a change."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def state(self, name: str, state: State, seconds: float) -> None:
        took = f" ({seconds:.1f} s)" if state in ("ready", "stopped") else ""
        self.note(f"{name}: {state}{took}")

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None: ...


class LiveTable:
    """A table of all processes that redraws itself while something changes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rows: dict[str, tuple[State, float, float]] = {}
        self._spinner = Spinner("dots")
        self._live: Live | None = None

    def state(self, name: str, state: State, seconds: float) -> None:
        self._rows[name] = (state, seconds, time.monotonic())
        self._show()

    def note(self, text: str) -> None:
        self._show()
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            self._rows.clear()

    def _show(self) -> None:
        if self._live is None:
            self._live = Live(get_renderable=self._table, console=self._console, refresh_per_second=8)
            self._live.start()

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, (state, seconds, since) in self._rows.items():
            busy = state == "starting"
            took = time.monotonic() - since if busy else seconds
            mark = self._spinner.render(time.monotonic()) if busy else Text("x" if state == "died" else "-")
            table.add_row(mark, name, Text(state, style=_STYLE[state]), f"{took:.1f} s")
        return table


def for_console(console: Console) -> Progress:
    """The fitting one."""
    return LiveTable(console) if console.is_terminal else Lines(console)
