"""The short benchmarks run, with counts too small to mean anything, and write the rows that scripts read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from benchmarks import binding, cost_model, ledger, reordering, routing


def rows(command: click.Command, file: Path, *options: str) -> list[dict[str, Any]]:
    """What a benchmark writes with `--json`."""
    command.main([*options, "--json", str(file)], standalone_mode=False)
    found: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    return found


@pytest.mark.parametrize(
    ("command", "options", "by", "figures"),
    [
        (
            routing.main,
            ["--workers", "2", "--workers", "4", "--decisions", "10", "--tokens", "64"],
            ("workers", [2, 4]),
            ["p50_ms", "p99_ms", "pure_p50_us"],
        ),
        (reordering.main, ["--w", "1", "--w", "5", "--queues", "3"], ("w", [1, 5]), ["p50_us"]),
        (ledger.main, ["--tokens", "64", "--tokens", "128", "--checks", "3"], ("tokens", [64, 128]), ["p50_ms"]),
        (
            binding.main,
            ["--workers", "1", "--workers", "3", "--decisions", "2"],
            ("workers", [1, 3]),
            ["p50_us", "predicted_load_p50_us", "rebind_p50_us"],
        ),
        (
            cost_model.main,
            ["--calls", "5", "--size", "5"],
            ("function", ["t_pre", "t_dec", "t_mixed", "t_kv"]),
            ["one_call_us", "vectorised_ns"],
        ),
    ],
    ids=["routing", "reordering", "ledger", "binding", "cost_model"],
)
def test_rows(command: click.Command, options: list[str], by: tuple[str, list[object]], figures: list[str], tmp_path: Path) -> None:
    found = rows(command, tmp_path / "rows.json", *options)
    assert [row[by[0]] for row in found] == by[1]
    for row in found:
        assert all(row[name] > 0 for name in figures), row
