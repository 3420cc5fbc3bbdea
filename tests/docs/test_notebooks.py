"""The notebooks of docs/ that need no JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("nbformat")

from docs.notebooks import (
    assert_has_charts_and_nothing_of_the_machine,
    assert_prints_what_is_stored,
    code_cells,
    stored_notebook,
)

TOPIC = "topic.ipynb"


@pytest.mark.full
def test_notebook_when_executed_then_prints_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("matplotlib", "polars", "pandas", "pyarrow"):
        pytest.importorskip(package)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    assert_prints_what_is_stored(TOPIC, tmp_path, cell_seconds=120)


def test_notebook_when_stored_then_has_its_charts_and_nothing_of_the_machine() -> None:
    assert_has_charts_and_nothing_of_the_machine(TOPIC, expected_charts=2)


def test_first_chart_when_counted_then_is_made_by_ten_lines() -> None:
    (cell, *_) = [
        cell for cell in code_cells(stored_notebook(TOPIC)) if "varies" in cell.metadata.get("tags", ())
    ]
    assert len([line for line in cell.source.splitlines() if line]) == 10
