"""Names in error messages: suggest the nearest known name, and shorten long lists of names."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping

# The least ratio of difflib at which a name is suggested: 'id' and 'topic' have 0.57, 'ofset' and 'offset' 0.91.
_LEAST_ALIKE = 0.6
_MAX_SHOWN = 20
_SHOWN = 3


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known name, or "" if none is near.

    Upper and lower case are not distinguished.

    >>> did_you_mean("ofset", ["key", "offset"]), did_you_mean("id", ["topic", "key"])
    (": did you mean 'offset'?", '')
    """
    names = {one.lower(): one for one in known}
    nearest = difflib.get_close_matches(name.lower(), names, 1, cutoff=_LEAST_ALIKE)
    return f": did you mean {names[nearest[0]]!r}?" if nearest else ""


def unknown_name(
    what: str, name: str, known: Collection[str], others: Mapping[str, str] | None = None
) -> str:
    """Return the message about an unknown name. It suggests the nearest known name, or lists names if none is near.

    others: known names by the names that other programs have for the same.

    >>> unknown_name("column", "id", ["topic", "key"])
    "unknown column 'id': expected one of topic, key"
    >>> unknown_name("option", "colour", ["paint", "co"], {"color": "paint"})
    "unknown option 'colour': did you mean 'paint'?"
    """
    others = others or {}
    meant = did_you_mean(name, {**dict.fromkeys(known), **others})
    for other, own in others.items():
        meant = meant.replace(repr(other), repr(own))
    return f"unknown {what} {name!r}" + (meant or f": expected one of {some_names(known)}")


def known_name(what: str, name: str, known: Iterable[str], others: Mapping[str, str] | None = None) -> str:
    """Return the name in `known` that equals `name` in any case. Raises ValueError with the text of `unknown_name`.

    others: see `unknown_name`.

    >>> known_name("column", "Offset", ["key", "offset"])
    'offset'
    """
    names = {one.lower(): one for one in known}
    if name.lower() not in names:
        raise ValueError(unknown_name(what, name, list(names.values()), others))
    return names[name.lower()]


def some_names(names: Iterable[str]) -> str:
    """Return up to 20 names as text, and the number of the others.

    >>> some_names(["a", "b"]), some_names(map(str, range(22)))[-18:]
    ('a, b', '18, 19, and 2 more')
    """
    shown = list(names)
    if len(shown) <= _MAX_SHOWN:
        return ", ".join(shown)
    return f"{', '.join(shown[:_MAX_SHOWN])}, and {len(shown) - _MAX_SHOWN} more"


def found_in_words(wanted: str, found: Collection[str]) -> str:
    """Return the end of a message that `wanted` was not found: up to three names, nearest first, and how many more.

    >>> found_in_words("order", ["orders"]), found_in_words("x", [])
    ('found orders', 'found none')
    >>> found_in_words("order", [f"t{number}" for number in range(9)] + ["orders"])
    'found 3 of 10: orders, t0, t1, and 7 more'
    """
    if not found:
        return "found none"
    near = difflib.get_close_matches(wanted, found, _SHOWN, cutoff=_LEAST_ALIKE)
    shown = [*near, *(name for name in sorted(found) if name not in near)]
    if len(shown) <= _SHOWN:
        return f"found {', '.join(shown)}"
    return f"found {_SHOWN} of {len(shown)}: {', '.join(shown[:_SHOWN])}, and {len(shown) - _SHOWN} more"
