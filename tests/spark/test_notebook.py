"""The notebook of docs/, executed: each cell prints what is stored with it.

Of cells tagged `varies` the outputs are charts, of measurements or of sizes that depend on the codecs' versions.
"""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

NOTEBOOK = Path(__file__).parents[2] / "docs" / "notebooks" / "kafka_logs_on_spark.ipynb"
TIMEOUT_SECONDS = 240  # of one cell, the first of which starts a JVM


@pytest.fixture
def stored():
    return nbformat.read(NOTEBOOK, as_version=4)


def printed(cell) -> str:
    """What a cell prints; what the JVM says on its own is not of it."""
    texts = [out.text for out in cell.outputs if out.output_type == "stream" and out.name == "stdout"]
    return re.sub(r"\n{2,}", "\n", "".join(texts))


def charts(cell) -> int:
    return sum("image/png" in out.get("data", ()) for out in cell.outputs)


def code_cells(book) -> list:
    return [cell for cell in book.cells if cell.cell_type == "code"]


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
def test_notebook_when_executed_then_prints_what_is_stored(stored, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")  # as a machine need not know its own name
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    found = copy.deepcopy(stored)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(found, timeout=TIMEOUT_SECONDS, resources=resources).execute()
    for before, after in zip(code_cells(stored), code_cells(found), strict=True):
        assert printed(after) == printed(before), after.source
        assert charts(after) == charts(before), after.source


def test_notebook_when_stored_then_has_its_outputs_and_nothing_of_the_machine(stored) -> None:
    text = NOTEBOOK.read_text()
    assert not re.search(r"/(tmp|home|root|Users)/|ERROR|Traceback|WARN", text)
    assert sum(map(charts, code_cells(stored))) == 2
    for cell in code_cells(stored)[1:]:
        assert cell.outputs, cell.source
        assert bool(charts(cell)) == ("varies" in cell.metadata.get("tags", ()))
