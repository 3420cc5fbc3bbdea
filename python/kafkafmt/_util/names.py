"""Names in error messages: the nearest of those that are known, and a few of many."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

# As difflib has it: what is less alike is another word. 'id' and 'topic' are at 0.57, 'ofset' and 'offset' at 0.91.
_LEAST_ALIKE = 0.6
_MOST_TOLD = 20
_TOLD = 3


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known one, in any case, or nothing.

    >>> did_you_mean("ofset", ["key", "offset"]), did_you_mean("id", ["topic", "key"])
    (": did you mean 'offset'?", '')
    """
    names = {one.lower(): one for one in known}
    nearest = difflib.get_close_matches(name.lower(), names, 1, cutoff=_LEAST_ALIKE)
    return f": did you mean {names[nearest[0]]!r}?" if nearest else ""


def unknown_name(what: str, name: str, known: Collection[str]) -> str:
    """Return the message about an unknown name: it tells the nearest known one, or, if none is near, those there are.

    >>> unknown_name("column", "id", ["topic", "key"])
    "unknown column 'id': expected one of topic, key"
    """
    meant = did_you_mean(name, known)
    return f"unknown {what} {name!r}" + (meant or f": expected one of {', '.join(list(known)[:_MOST_TOLD])}")


def found_in_words(wanted: str, found: Collection[str]) -> str:
    """Return what was found where `wanted` was not: all of few names, the nearest of many and how many more there are.

    >>> found_in_words("order", ["orders"]), found_in_words("x", [])
    ('found orders', 'found none')
    >>> found_in_words("order", [f"t{number}" for number in range(9)] + ["orders"])
    'found 3 of 10: orders, t0, t1, and 7 more'
    """
    if not found:
        return "found none"
    near = difflib.get_close_matches(wanted, found, _TOLD, cutoff=_LEAST_ALIKE)
    told = [*near, *(name for name in sorted(found) if name not in near)]
    if len(told) <= _TOLD:
        return f"found {', '.join(told)}"
    return f"found {_TOLD} of {len(told)}: {', '.join(told[:_TOLD])}, and {len(told) - _TOLD} more"
