"""bench/RESULTS.md: what `make bench-report` makes of the files in bench/results, which have one schema."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "bench" / "results").glob("*.json"))


def test_results_when_reported_then_are_those_of_the_page() -> None:
    command = [sys.executable, "-m", "bench.report", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_result_when_read_then_has_its_origin_and_a_cell_for_each_column(path: Path) -> None:
    result = json.loads(path.read_text())
    assert result["name"] == path.stem
    assert result["command"].startswith(("make bench", "python -m bench."))
    assert result["date"]
    assert result["machine"]
    assert result["cores"] >= 1
    for table in result["tables"]:
        for row in table["rows"]:
            assert len(row) == len(table["columns"])
            assert all(isinstance(cell.get("value", 0), int | float) for cell in row)
