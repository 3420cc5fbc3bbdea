"""The page docs/tables.md: its blocks are run, and print what stands below them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from data.real_logs import LOGS
from mirror.page import BLOCK, Session

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text()


def test_page_when_run_then_its_queries_print_what_it_says(tmp_path: Path) -> None:
    """Exports print sizes, which depend on the versions of Parquet's writer: it is enough that they succeed."""
    for package in ("deltalake", "duckdb", "pyiceberg", "sqlalchemy"):
        pytest.importorskip(package)
    shutil.copytree(LOGS, tmp_path / "backup")
    session = Session(tmp_path, {})
    blocks = list(BLOCK.finditer(PAGE))
    assert sum(block["printed"] is not None for block in blocks) == PAGE.count("```text") > 5
    for block in blocks:
        printed = session.run(block["language"], block["code"])
        if block["printed"] is not None:
            assert printed.splitlines() == block["printed"].splitlines(), block["code"]
