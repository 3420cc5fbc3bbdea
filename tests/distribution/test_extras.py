"""The extras of pyproject.toml, as docs/install.md lists them and as messages name them."""

from __future__ import annotations

import re
from pathlib import Path

from distribution_tools import PROJECT, ROOT

FOR_DEVELOPERS = {"bench", "dev", "docs", "lint", "test"}
EXTRAS = set(PROJECT["project"]["optional-dependencies"]) - FOR_DEVELOPERS


def test_install_page_when_it_lists_extras_then_has_all_of_them_once() -> None:
    page = (ROOT / "docs" / "install.md").read_text()
    table = page[page.index("| extra | adds | for |") :].split("\n\n")[0]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert sorted(listed) == sorted(EXTRAS)


def test_page_of_threads_when_it_tells_what_installs_without_the_gil_then_has_all_extras() -> None:
    page = (ROOT / "docs" / "threads.md").read_text()
    section = page[page.index("On 3.14t, ") : page.index("## Checks")]
    assert {name for name in re.findall(r"`(\w+)`", section) if name in EXTRAS} == EXTRAS


def test_messages_and_pages_when_they_name_an_extra_then_it_exists() -> None:
    sources = [*(ROOT / "python").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    named: dict[str, Path] = {}
    for source in sources:
        for extras in re.findall(r"pip install '(?:kafkafmt|\.)\[([\w,]+)\]'", source.read_text()):
            named.update(dict.fromkeys(extras.split(","), source))
    assert named
    assert {extra: source for extra, source in named.items() if extra not in EXTRAS} == {}


def test_pages_when_they_install_kafkafmt_then_never_by_its_name_from_a_package_index() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.ipynb"), ROOT / "README.md"]
    commands = [
        (page, line)
        for page in pages
        for line in page.read_text().splitlines()
        if re.search(r"pip (install|download|wheel) .*kafkafmt(\[|['\" ]|$)", line)
    ]
    assert commands
    assert [(page, line) for page, line in commands if "--no-index" not in line and "Never" not in line] == []
