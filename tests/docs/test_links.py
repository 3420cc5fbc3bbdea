"""Links of the README and of all pages: files are there, headings are there, addresses of the web are well formed."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from docs.links import anchors_of, links_of

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "bench").glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "tests" / "data" / "README.md",
]


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_of_page_when_followed_then_lead_to_what_is_there(page: Path) -> None:
    for link in links_of(page.read_text()):
        address = urlsplit(link)
        if address.scheme:
            assert address.scheme == "https", link
            assert re.fullmatch(r"[\w-]+(\.[\w-]+)+", address.netloc), link
            continue
        target = (page.parent / address.path).resolve() if address.path else page
        assert target.exists(), link
        assert target.is_relative_to(ROOT), link
        if address.fragment:
            assert address.fragment in anchors_of(target), link
