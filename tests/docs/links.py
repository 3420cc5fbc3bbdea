"""Links in Markdown, and the anchors of its headings, as GitHub makes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_FENCE = re.compile(r"^(?P<fence>```+|:::+).*?^(?P=fence)\s*$", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<text>.+)$", re.MULTILINE)


def _without_code_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```\s*$", "", text, flags=re.DOTALL | re.MULTILINE)


def links_of(text: str) -> Iterator[str]:
    """Where the links of a page lead, those in code left out."""
    for link in _LINK.finditer(_without_code_blocks(text)):
        yield link["target"]


def anchors_of(page: Path) -> set[str]:
    """What may stand behind `#` in a link to a page."""
    anchors: set[str] = set()
    for heading in _HEADING.finditer(_without_code_blocks(page.read_text())):
        slug = re.sub(r"[^\w\- ]", "", heading["text"].strip().lower()).replace(" ", "-")
        number = 1
        while slug in anchors:
            slug, number = f"{slug.removesuffix(f'-{number - 1}')}-{number}", number + 1
        anchors.add(slug)
    return anchors
