"""docs/state.md against the code: whole tables, and every script among the calls."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from ampd.state.scripts import load_scripts

LINES = (Path(__file__).parents[2] / "docs" / "state.md").read_text().splitlines()


def tables() -> list[list[list[str]]]:
    """The cells of each table's rows, header first."""
    groups = groupby(LINES, key=lambda line: line.startswith("|"))
    return [[[cell.strip() for cell in row.strip("|").split("|")] for row in rows] for is_table, rows in groups if is_table]


def test_every_row_has_its_headers_cells() -> None:
    assert [row for table in tables() for row in table if len(row) != len(table[0])] == []


def test_every_script_is_among_the_calls() -> None:
    calls = next(table for table in tables() if table[0][0] == "call")
    assert set(load_scripts()) - {row[1].strip("`") for row in calls} == set()
