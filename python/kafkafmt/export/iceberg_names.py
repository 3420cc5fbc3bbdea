"""Names of namespaces and tables in Iceberg: dots separate the parts, and a part with dots is in backquotes."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kafkafmt.export.errors import ExportError

_PART = r"`[^`]+`|[^.`]+"
_NAME = re.compile(rf"(?:{_PART})(?:\.(?:{_PART}))*")


def parse_name(name: str) -> tuple[str, ...]:
    """Return the parts of a name. Raises ExportError.

    >>> parse_name("raw.`orders.eu`")
    ('raw', 'orders.eu')
    """
    if _NAME.fullmatch(name) is None:
        raise ExportError(f"expected names separated by dots, those with dots in backquotes; found {name!r}")
    return tuple(part.strip("`") for part in re.findall(_PART, name))


def shown_name(parts: Iterable[str]) -> str:
    """Return the name that `parse_name` parses."""
    return ".".join(f"`{part}`" if "." in part else part for part in parts)
