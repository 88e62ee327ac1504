"""How plots look: made for print, so every group has a line style and a marker besides its colour.

matplotlib without pyplot: nothing global is touched.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

_RC: dict[RcKeyType, Any] = {
    "font.size": 9, "axes.titlesize": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
    "grid.linewidth": 0.5, "legend.frameon": False, "legend.fontsize": 8, "svg.fonttype": "none", "svg.hashsalt": "ampd",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Style:
    """Of one group."""

    color: str  # of Okabe and Ito's set, which the colour-blind can tell apart
    marker: str
    line: str | tuple[int, tuple[int, ...]]

    @property
    def mark(self) -> dict[str, Any]:
        """Of a measured point."""
        return {"color": self.color, "marker": self.marker, "linestyle": "none", "markersize": 5, "fillstyle": "none"}


STYLES = (
    Style("#0072B2", "o", "-"), Style("#D55E00", "s", "--"), Style("#009E73", "^", "-."), Style("#CC79A7", "D", ":"),
    Style("#000000", "v", (0, (7, 2, 1, 2, 1, 2))),
)  # fmt: skip


@contextmanager
def print_style() -> Iterator[None]:
    """Draw within it."""
    with rc_context(_RC):
        yield


def log_axis(axes: Axes, which: str, base: int) -> None:
    """A logarithmic axis, `which` x or y, with plain numbers."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log", base=base)
    low, high = axis.get_data_interval()
    narrow = base == 10 and high < 1000 * low
    axis.set_major_locator(LogLocator(base=base, subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=14))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_formatter(NullFormatter())


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg; returns both."""
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
    for file in files:
        figure.savefig(file, dpi=200, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files
