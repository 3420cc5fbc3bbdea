"""The README, tutorials and guides that need neither a broker nor Spark: their blocks print what stands below them.

The README's other tasks are run by tests/serve/test_docs.py, tests/mirror/test_docs.py and tests/spark/test_docs.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.pages import (
    ROOT,
    assert_has_blocks_for_all_it_prints,
    assert_prints_what_it_says,
    section,
    titles_with_blocks,
)

pytestmark = pytest.mark.slow

pytest.importorskip("pyarrow")

PAGES = [
    "docs/tutorials/python.md",
    "docs/tutorials/command-line.md",
    "docs/inspect.md",
    "docs/convert.md",
]
SECTIONS = ["## In ten lines", "### Inspect a backup", "### Convert for old consumers"]
FORENSICS = "docs/forensics.md"
RECIPES = "docs/recipes.md"
MOST_LINES = 140


@pytest.mark.parametrize("title", SECTIONS)
def test_section_of_readme_when_run_then_prints_what_it_says(title: str, tmp_path: Path) -> None:
    assert_prints_what_it_says(section("README.md", title), tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("page", PAGES)
def test_page_when_run_then_prints_what_it_says(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text()
    assert_has_blocks_for_all_it_prints(text)
    assert_prints_what_it_says(text, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("title", titles_with_blocks(FORENSICS))
def test_section_of_forensics_when_run_then_prints_what_it_says(title: str, tmp_path: Path) -> None:
    text = section(FORENSICS, title)
    assert_has_blocks_for_all_it_prints(text)
    assert_prints_what_it_says(text, tmp_path)


@pytest.mark.parametrize("title", titles_with_blocks(RECIPES))
def test_recipe_when_run_then_prints_what_it_says(title: str, tmp_path: Path) -> None:
    for package in ("polars", "duckdb", "fastavro"):
        pytest.importorskip(package)
    text = section(RECIPES, title)
    if "avro" in text:
        pytest.importorskip("kafkafmt.decode.avro")
    assert_has_blocks_for_all_it_prints(text)
    assert_prints_what_it_says(text, tmp_path)


def test_readme_when_counted_then_fits_a_page() -> None:
    text = (ROOT / "README.md").read_text()
    assert_has_blocks_for_all_it_prints(text)
    assert len(text.splitlines()) <= MOST_LINES
