"""The command `ampd profile show`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console

from ampd.bench.cli import write_json
from ampd.bench.lengths import load_sessions
from ampd.bench.terminal import make_console
from ampd.cost_model import Profile, load_profile
from ampd.errors import SetupError
from ampd.profiler.report import fit_rows, fits_table, make_fits_table
from ampd.profiler.trace_share import KvShare, kv_shares

FILE = click.Path(dir_okay=False, path_type=Path)
JSON = click.option("--json", "json_file", metavar="FILE", help="Write the rows as JSON; '-' is standard output.")
_WORST = 3  # regions of a function that are shown


@click.command()
@click.argument("profile_file", metavar="PROFILE", type=FILE)
@click.option("--trace", "trace_file", type=FILE, help="T_kv / T_pre of the incremental rounds of recorded sessions, JSONL rows"
              ' {"session", "rounds": [{"prompt", "history", "output"}]}.')  # fmt: skip
@click.option("--plots", "plots_dir", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Draw points against pieces, residuals and, with --trace, T_kv / T_pre, as PNG and SVG.")  # fmt: skip
@click.option("--regions", is_flag=True, help="List every region of every function, not only the worst.")
@JSON
def show(profile_file: Path, trace_file: Path | None, plots_dir: Path | None, regions: bool, json_file: str | None) -> None:
    """Fit errors of a PROFILE by function and region."""
    console = make_console(stderr=json_file == "-")
    profile = load_profile(profile_file)
    shares = kv_shares(profile, load_sessions(trace_file)) if trace_file is not None else []
    _print(console, profile, shares, None if regions else _WORST)
    document: dict[str, Any] = {"rows": fit_rows(profile)}
    if trace_file is not None:
        document["trace"] = [share.as_json() for share in shares]
    if plots_dir is not None:
        drawn = _draw(profile, shares, plots_dir)
        document["plots"] = [str(path) for path in drawn]
        console.print(f"{len(drawn)} plots in {plots_dir}", highlight=False)
    write_json(document, json_file)


def _print(console: Console, profile: Profile, shares: list[KvShare], regions: int | None) -> None:
    meta = profile.meta
    console.print(fits_table(profile, regions=regions))
    if any(not row["regions"] and row["heldout_median_error"] is None for row in fit_rows(profile)):
        console.print("-: nothing was held out, so the error is not known", highlight=False)
    if meta.source != "measured":
        console.print(
            f"{meta.source}: the errors are those of the fits against tables or formulas, not against an engine", highlight=False
        )
    about = (f"{meta.engine} {meta.engine_version}", f"block size {meta.block_size}", meta.transport, meta.mode, meta.created)
    console.print(" | ".join(part for part in about if part), highlight=False)
    for line in meta.noise:
        console.print(f"noise: {line}", highlight=False)
    if shares:
        console.print(_shares_table(shares, meta.transport))


def _shares_table(shares: list[KvShare], transport: str | None) -> Any:
    by = f", {transport}" if transport else ""
    title = f"T_kv (history and increment{by}) / T_pre of the trace's incremental rounds"
    table = make_fits_table(title, ("theta", "rounds", "outside range", "median", "p95"))
    for share in shares:
        row = share.as_json()
        middle, high = (f"{100 * row[f'kv_over_pre_{which}']:.1f} %" for which in ("median", "p95"))
        table.add_row(str(share.theta), f"{row['rounds']:,}", f"{share.outside:,}", middle, high)
    return table


def _draw(profile: Profile, shares: list[KvShare], folder: Path) -> list[Path]:
    try:
        from ampd.profiler.plots import draw_profile
    except ModuleNotFoundError as e:
        raise SetupError(f"--plots needs matplotlib ({e}); install it with: pip install 'ampd[plots]'") from None
    return draw_profile(profile, shares, folder)
