"""Files and folders of the sources that pages for developers name: they are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ARCHITECTURE = "docs/architecture.md"
PAGES = [ARCHITECTURE, "docs/threads.md", "CONTRIBUTING.md", "bench/README.md"]
FOLDERS = ["bench", "docs", "python", "src", "tests", "tools"]
# Names in capitals stand for others, as in `src/_kafkafmt/FOLDER/NAME.pyx`.
_NAMED = re.compile(r"`([a-z_][\w./-]*\.(?:py|pyx|pxd|pyi|sh|toml|txt))`")


def files() -> Iterator[str]:
    for path in (*ROOT.iterdir(), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.*"))):
        yield f"/{path.relative_to(ROOT)}"


@pytest.mark.parametrize("page", PAGES)
def test_file_that_a_page_names_when_looked_up_then_is_there(page: str) -> None:
    named = {name for name in _NAMED.findall((ROOT / page).read_text()) if name == name.lower()}
    ends = {path[-len(name) - 1 :] for path in files() for name in named}
    assert {name for name in named if f"/{name}" not in ends} == set()


def test_table_of_kernels_when_read_then_has_each_folder() -> None:
    text = (ROOT / ARCHITECTURE).read_text()
    table = text[text.index("| folder | kernels |") :].split("\n\n")[0]
    folders = {path.parent.name for path in (ROOT / "src" / "_kafkafmt").rglob("*.pyx")}
    assert set(re.findall(r"^\| `(\w+)/` \|", table, re.MULTILINE)) == folders
