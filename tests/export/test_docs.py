"""The page docs/tables.md: its blocks are run, and print what stands below them."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.pages import ROOT, assert_prints_what_it_says

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs" / "tables.md").read_text()


def test_page_when_run_then_its_queries_print_what_it_says(tmp_path: Path) -> None:
    """Exports print sizes, which depend on the versions of Parquet's writer: it is enough that they succeed."""
    for package in ("deltalake", "duckdb", "pyiceberg", "sqlalchemy"):
        pytest.importorskip(package)
    assert PAGE.count("```text") > 5
    assert_prints_what_it_says(PAGE, tmp_path, tells_all=False)
