"""`python -m benchmarks.roofline` runs and writes the rows that scripts read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ampd.profiler.silicon.package import INSTALL, data_folder
from benchmarks import roofline


@pytest.mark.skipif(data_folder() is None, reason=f"aiconfigurator-core is not installed: {INSTALL}")
def test_rows_of_each_function(tmp_path: Path) -> None:
    options = ["--system", "h200_sxm", "--model", "Qwen/Qwen3-32B", "--tp", "4", "--json", str(tmp_path / "rows.json")]
    roofline.main.main(options, standalone_mode=False)
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["function"] for row in rows] == ["T_pre", "T_dec", "T_mixed"]
    assert all(0 <= row["median_error"] <= row["p95_error"] and abs(row["bias"]) <= row["median_error"] for row in rows)
    assert rows[0]["points"] == 150
