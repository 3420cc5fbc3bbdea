"""The notebook of docs/ that reads logs on Spark, executed: each cell prints what is stored with it."""

from __future__ import annotations

import sys
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

NOTEBOOK = "kafka_logs_on_spark.ipynb"
CELL_SECONDS = 240  # the first cell starts a JVM


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
def test_notebook_when_executed_then_prints_what_is_stored(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")  # as a machine need not know its own name
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    assert_prints_what_is_stored(NOTEBOOK, tmp_path, cell_seconds=CELL_SECONDS)


def test_notebook_when_stored_then_has_its_outputs_and_nothing_of_the_machine() -> None:
    assert_has_charts_and_nothing_of_the_machine(NOTEBOOK, expected_charts=2)
    for cell in code_cells(stored_notebook(NOTEBOOK))[1:]:
        assert cell.outputs, cell.source
