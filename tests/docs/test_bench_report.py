"""bench/RESULTS.md: what `make bench-report` makes of the files in bench/results, which have one schema."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from bench.charts import Panel, Panels
from bench.report import SECTIONS, pages

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "bench" / "results").glob("*.json"))


def test_results_when_reported_then_are_those_of_the_page() -> None:
    command = [sys.executable, "-m", "bench.report", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_results_when_a_benchmark_writes_them_then_the_page_has_a_section_for_them() -> None:
    """A result is written by `report("name", ...)`, or with the constant NAME of a package in place of the name."""
    written = {
        name
        for path in (ROOT / "bench").rglob("*.py")
        for name in re.findall(r"^ +report\(\s*\"(\w+)\"", path.read_text(), re.MULTILINE)
    }
    assert {"bench", "backup", "forensics", "tiered"} <= written
    assert written | {"endurance"} == {section.name for section in SECTIONS}


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


@pytest.mark.parametrize(
    ("page", "tables"),
    [
        (
            "kip-283",
            [
                "exact_size exact_size",
                "exact_size costs",
                "chunk_size chunk_size",
                "serve_throughput chunk_size",
                "fetch_memory fetch_memory",
                "serve_memory serve_memory",
                "serve_connections serve_connections",
            ],
        ),
        ("kip-126", ["bench splitting_all"]),
    ],
)
def test_measurements_of_the_kip_when_its_page_is_read_then_stand_there_beside_ours(
    page: str, tables: list[str]
) -> None:
    text = (ROOT / "docs" / "explanation" / f"{page}.md").read_text()
    assert re.findall(r"<!-- results: (.*?) -->\n\|", text) == tables


def test_table_when_changed_by_hand_then_the_check_names_the_page(tmp_path: Path) -> None:
    page = tmp_path / "docs" / "kip.md"
    page.parent.mkdir()
    page.write_text("<!-- results: chunk_size chunk_size -->\n| 1 KiB | 999 |\n<!-- end of results -->\n")
    ((path, text),) = pages(tmp_path / "docs")
    assert path == page
    assert "999" not in text
    assert "| 128 KiB |" in text


def test_panels_when_a_series_was_not_measured_then_are_drawn_without_it() -> None:
    panels = Panels("minutes", (Panel("memory, MiB", ("memory",)), Panel("threads", ("threads",))))
    drawn = panels.draw({"series": {"memory": [(1.0, 20.0), (2.0, 21.0)], "threads": []}})
    assert "memory, MiB" in drawn
    assert "threads" in drawn
