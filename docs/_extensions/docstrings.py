"""Makes reStructuredText of docstrings and help texts, which are plain text with names in backticks.

`name: text` lines become a list. Characters that reStructuredText reads as markup are escaped. Sections such as
`Args:`, which napoleon reads, and examples stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from sphinx.application import Sphinx

_ENTRY = re.compile(r"(?P<name>`?[\w*]+`?(?:(?:,| and| or) `?[\w*]+`?)*): (?P<text>.*)")
_SECTION = re.compile(r"(Args|Arguments|Attributes|Example|Examples|Note|Raises|Returns|Yields):$")
_SIGNATURE = re.compile(r"[\w.]+\(.*\)( -> .*)?")
_LITERAL = re.compile(r"(`[^`]*`)")
_NAME_WITH_ENDING = re.compile(r"(?<=\w`)(?=\w)")
_MARKUP = re.compile(r"([*|]|(?<=\w)_(?!\w))")
_MODULE = re.compile(
    r"(?<!`)`(accumulator|codecs|log|memory|net|schemas|spark|streams)`(?!`)"
)  # parameters, not links
_BLOCK = "| "
_DATA = frozenset({"attribute", "data", "property"})
_kept: dict[str, list[str]] = {}


def escaped(line: str) -> str:
    """Return a line of text with no markup outside of backticks."""
    parts = _LITERAL.split(line)
    text = "".join(part if part.startswith("`") else _MARKUP.sub(r"\\\1", part) for part in parts)
    return _NAME_WITH_ENDING.sub(r"\\ ", _MODULE.sub(r"``\1``", text))


def as_rst(lines: list[str]) -> Iterator[str]:
    """Return the lines of a docstring, paragraph by paragraph."""
    in_section = False
    for is_text, paragraph in groupby(_joined(lines), key=bool):
        if not is_text:
            yield ""
            continue
        own = list(paragraph)
        in_section = bool(_SECTION.match(own[0])) or (in_section and own[0].startswith(" "))
        if own[0].lstrip().startswith((">>>", "..")) or in_section:
            yield from own
        elif _ENTRY.fullmatch(own[0]):
            yield from _list_of(own)
        else:
            yield from map(escaped, own)


def _joined(lines: list[str]) -> Iterator[str]:
    """Tell where a list begins behind a sentence."""
    before = ""
    for line in lines:
        is_first = _ENTRY.fullmatch(line) and not before.startswith(" ") and not _ENTRY.fullmatch(before)
        if is_first and before.endswith((".", ":")):
            yield ""
        before = line
        yield line


def _list_of(lines: list[str]) -> Iterator[str]:
    for line in lines:
        entry = _ENTRY.fullmatch(line)
        if entry is not None and not line.startswith(" "):
            names = re.sub(r"`?([\w*]+)`?(?=,|$| and | or )", r"``\1``", entry["name"])
            yield f"- {names}: {escaped(entry['text'])}"
        else:
            yield f"  {escaped(line.strip())}"


def process_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if lines and _SIGNATURE.fullmatch(lines[0]):  # compiled functions begin with theirs
        del lines[0]
    if lines and lines[0].startswith("Alias for field number"):  # all that a NamedTuple says of its fields
        lines.clear()
    lines[:] = as_rst(lines)
    if what in _DATA:
        _kept[name] = list(lines)


def keep_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Undo what napoleon did to data: it takes what stands before the first colon for a type."""
    if name in _kept:
        lines[:] = _kept.pop(name)


def process_help(app: Sphinx, context: Any, lines: list[str]) -> None:
    """Of a command: its examples, which are lines of a block, become a code block."""
    found: list[str] = []
    for is_block, group in groupby(lines, key=lambda line: line.startswith(_BLOCK)):
        if is_block:
            found += [".. code-block:: text", "", *(f"   {line[2:]}" for line in group), ""]
        else:
            found += (line if line.lstrip().startswith("..") else escaped(line) for line in group)
    lines[:] = found


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process_docstring, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", keep_docstring, priority=600)  # behind it
    for part in ("description", "options", "arguments", "epilog"):
        app.connect(f"sphinx-click-process-{part}", process_help)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
