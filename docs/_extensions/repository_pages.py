"""Shows files of the repository as pages of the site, and turns links to these files into links to their pages.

In the repository, a page of `PAGES` has only a link to its file. The site shows the file instead.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {
    "benchmarks": "bench/RESULTS.md",
    "changelog": "CHANGELOG.md",
    "contributing": "CONTRIBUTING.md",
    "measuring": "bench/README.md",
    "security": "SECURITY.md",
}
_SITE = {**{path: f"docs/{page}.md" for page, path in PAGES.items()}, "README.md": "docs/index.md"}
_TARGET = re.compile(r"(?<=\]\()(?!#|\w+:)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")


def with_links_of_site(text: str, file: Path, page: Path) -> str:
    """Return the text of `file` with its links as `page` of the site has them."""

    def target(match: re.Match[str]) -> str:
        path = os.path.relpath(file.parent / match["path"], ROOT)
        anchor = "" if path == "README.md" else match["anchor"] or ""
        return os.path.relpath(ROOT / _SITE.get(path, path), page.parent) + anchor

    return _TARGET.sub(target, text)


def read(app: Sphinx, name: str, source: list[str]) -> None:
    page = DOCS / f"{name}.md"
    file = ROOT / PAGES[name] if name in PAGES else page
    app.env.note_dependency(str(file))
    source[0] = with_links_of_site(file.read_text(), file, page)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
