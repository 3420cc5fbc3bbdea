"""The notebooks of docs/, executed. Of cells tagged `varies` the outputs are charts, which differ from run to run."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat

NOTEBOOKS = Path(__file__).parents[2] / "docs" / "notebooks"


def stored_notebook(name: str) -> Any:
    return nbformat.read(NOTEBOOKS / name, as_version=4)


def code_cells(book: Any) -> list[Any]:
    return [cell for cell in book.cells if cell.cell_type == "code"]


def printed(cell: Any) -> str:
    """What a cell prints; what the JVM says on its own is not of it."""
    texts = [out.text for out in cell.outputs if out.output_type == "stream" and out.name == "stdout"]
    return re.sub(r"\n{2,}", "\n", "".join(texts))


def charts(cell: Any) -> int:
    return sum("image/png" in out.get("data", ()) for out in cell.outputs)


def assert_prints_what_is_stored(name: str, folder: Path, *, cell_seconds: int) -> None:
    """Execute a notebook in a folder. Each cell prints what is stored with it, and has as many charts."""
    stored = stored_notebook(name)
    found = copy.deepcopy(stored)
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(found, timeout=cell_seconds, resources=resources).execute()
    for before, after in zip(code_cells(stored), code_cells(found), strict=True):
        assert printed(after) == printed(before), after.source
        assert charts(after) == charts(before), after.source


def assert_has_charts_and_nothing_of_the_machine(name: str, expected_charts: int) -> None:
    cells = code_cells(stored_notebook(name))
    text = (NOTEBOOKS / name).read_text()
    assert not re.search(r"/(tmp|home|root|Users)/|ERROR|Traceback|WARN", text)
    assert sum(map(charts, cells)) == expected_charts
    for cell in cells:
        assert bool(charts(cell)) == ("varies" in cell.metadata.get("tags", ()))
