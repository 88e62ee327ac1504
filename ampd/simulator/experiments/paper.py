"""`make paper`: the paper's experiments, from nothing to results/paper.json, a table and figures.

    python -m ampd.simulator.experiments.paper [--quick] [--jobs 2] [--out results/paper.json]

It goes on where an interrupted run was, and the file is the same, to the byte, for any number of processes. Progress is shown on a
terminal only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import click
import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ampd.errors import AmpdError, ConfigError
from ampd.simulator.commands.sweep_pool import run_points
from ampd.simulator.experiments.paper_cell import Scene, play, scene_of
from ampd.simulator.experiments.paper_grid import CELLS, EFFORTS, ENTRANTS, MODELS, Cell, Effort
from ampd.simulator.experiments.paper_journal import PaperJournal, code_digest, task_key
from ampd.simulator.experiments.paper_rows import Row, rows_of
from ampd.simulator.experiments.paper_studies import Study, compute_study, studies_of
from ampd.simulator.experiments.paper_table import best_rows, render_table
from ampd.simulator.experiments.targets import LEVELS, Level


@dataclass(frozen=True, slots=True)
class Task:
    """What one process computes in one go: a policy in a cell, or a study."""

    cell: Cell
    policy: str
    effort: Effort
    level: Level
    profiles: str
    study: Study | None = None


@lru_cache(maxsize=2)
def _scene(cell: Cell, profiles: str, level: Level, seed: int) -> Scene:
    return scene_of(cell, Path(profiles), level, seed)


def compute(task: Task) -> list[Row]:
    """A task's rows; they depend on nothing but the task."""
    effort = task.effort
    scene = _scene(task.cell, task.profiles, task.level, effort.seed)
    if task.study is not None:
        return compute_study(scene, task.study, effort)
    entrant = next(e for e in ENTRANTS if e.name == task.policy)
    return rows_of(scene, task.policy, effort, play(scene, entrant, effort))


@dataclass(slots=True)
class Run:
    """Tasks over processes, with what the journal knows already."""

    journal: PaperJournal
    code: str
    jobs: int

    def rows(self, tasks: Sequence[Task], label: str) -> list[Row]:
        """All rows, in the tasks' order."""
        keys = [task_key(self.code, task) for task in tasks]
        todo = [i for i, key in enumerate(keys) if key not in self.journal.done]
        with _progress(label, len(tasks), len(tasks) - len(todo)) as advance:

            def done(index: int, rows: list[Row]) -> None:
                self.journal.add(keys[todo[index]], rows)
                advance()

            run_points(compute, [tasks[i] for i in todo], self.jobs, done)
        return [row for key in keys for row in self.journal.done[key]]


@contextmanager
def _progress(label: str, total: int, done: int) -> Iterator[Callable[[], None]]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(label, total=total, completed=done)
        yield lambda: progress.advance(bar)


def run_paper(
    effort: Effort, cells: Sequence[Cell], policies: Sequence[str], level: Level, profiles: Path, run: Run, studies: bool = True
) -> list[Row]:
    """Rows of the grid, then of the studies."""
    # The largest first, so that the processes end together.
    order = sorted(cells, key=lambda c: (-c.gpus, CELLS.index(c)))
    tasks = [Task(cell, policy, effort, level, str(profiles)) for cell in order for policy in policies]
    rows = run.rows(tasks, "policies in cells")
    if studies:
        todo = [Task(s.cell, s.policy, effort, level, str(profiles), s) for s in studies_of(best_rows(rows), MODELS)]
        rows += run.rows(todo, "studies")
    rank = {(c.hardware, c.model, c.trace): i for i, c in enumerate(CELLS)}
    return sorted(rows, key=lambda r: rank[r["hardware"], r["model"], r["trace"]])


@click.command()
@click.option("--quick", is_flag=True, help="Short runs and coarse rates, for a first look; rows are labelled so.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(1), help="Processes.")
@click.option("--out", default=Path("results/paper.json"), show_default=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--profiles", default=Path("configs/profiles"), show_default=True, type=click.Path(path_type=Path, file_okay=False))
@click.option("--targets", "level", default="middle", show_default=True, type=click.Choice(LEVELS))
@click.option("--cell", "only", multiple=True, help="Only cells with these words, e.g. 'h200 gaia'.")
@click.option("--policy", "policies", multiple=True, help="Only these policies.")
@click.option("--no-studies", is_flag=True, help="The grid alone.")
@click.option("--fresh", is_flag=True, help="Forget what was computed before.")
@click.option("--figures/--no-figures", default=True, show_default=True, help="Draw the figures beside the results.")
def main(
    quick: bool, jobs: int, out: Path, profiles: Path, level: Level, only: tuple[str, ...], policies: tuple[str, ...],
    no_studies: bool, fresh: bool, figures: bool,
) -> None:  # fmt: skip
    """The paper's experiments in simulation: goodput of every policy for 3 models, 4 traces and 2 GPUs."""
    effort = EFFORTS["quick" if quick else "full"]
    try:
        cells = chosen_cells(only) if only else list(effort.cells)
        names = chosen_policies(policies)
        code = code_digest(profiles / cell.profile for cell in {c.profile: c for c in cells}.values())
        run = Run(PaperJournal(out.with_suffix(".journal"), fresh), code, jobs)
        rows = run_paper(effort, cells, names, level, profiles, run, studies=not no_studies)
        out.write_bytes(msgspec.json.format(msgspec.json.encode({"rows": rows}), indent=1) + b"\n")
    except AmpdError as error:
        click.echo(f"ampd.simulator.experiments.paper: {error}", err=True)
        sys.exit(2)
    table = render_table(rows)
    out.with_suffix(".txt").write_text(table + "\n", encoding="utf-8")
    click.echo(table)
    click.echo(f"\n{out}: {len(rows)} rows")
    if figures:
        from ampd.simulator.results.report import draw_report, load_rows  # matplotlib is an extra

        for path in draw_report(load_rows(out), out.parent / "paper"):
            click.echo(str(path))


def chosen_cells(only: Sequence[str]) -> list[Cell]:
    """Cells of which some entry's words are all parts of its name. Raises ConfigError when none is."""
    if not only:
        return list(CELLS)
    found = [c for c in CELLS if any({*words.split()} <= {c.hardware, c.model, c.trace} for words in only)]
    if not found:
        raise ConfigError(f"--cell {' '.join(map(repr, only))}: no such cell; words are of {_known()}")
    return found


def chosen_policies(policies: Sequence[str]) -> list[str]:
    """All by default. Raises ConfigError for an unknown one."""
    known = [e.name for e in ENTRANTS]
    if wrong := [p for p in policies if p not in known]:
        raise ConfigError(f"--policy {wrong[0]!r}: unknown; choose of {', '.join(known)}")
    return [name for name in known if name in policies] if policies else known


def _known() -> str:
    return ", ".join(sorted({word for c in CELLS for word in (c.hardware, c.model, c.trace)}))


if __name__ == "__main__":
    main()
