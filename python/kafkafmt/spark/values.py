"""Options as Spark hands them on, text by name, and the values that they stand for.

Names are case-insensitive, as all of Spark's. An option that is not known is an error that names the nearest one that
is, if one is near: one that was passed over in silence would do other things than were asked for. The parsers take text
and raise ValueError with what was expected of it; `Given.parse` puts the option's name and what was found around that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from kafkafmt import sizes
from kafkafmt._util.names import unknown_name

MAX_LONG = 2**63 - 1

_MAX_ARROW_BYTES = 1024 * 1024 * 1024

_Value = TypeVar("_Value")


class Given:
    """The options that were given, by their names in lower case; raises ValueError for one that is not `known`."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        self._values = {name.lower(): str(value) for name, value in options.items()}
        names = list(known)
        for name in options:
            known_name("option", name, names)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def parse(self, name: str, parse: Callable[[str], _Value], default: _Value) -> _Value:
        value = self._values.get(name.lower())
        if value is None:
            return default
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f"option {name}: {error}, found {value!r}") from None

    def ensure_none_of(self, names: Iterable[str], reason: str) -> None:
        for name in names:
            if name in self:
                raise ValueError(f"option {name}: {reason}")

    def ensure_one_of(self, *names: str) -> None:
        found = [name for name in names if name in self]
        if len(found) > 1:
            raise ValueError(f"options {' and '.join(found)}: expected one of them")


def known_name(what: str, name: str, known: Iterable[str]) -> str:
    """The one of `known` that `name` is, in any case; raises ValueError, which names what is near, if none is."""
    names = {one.lower(): one for one in known}
    if name.lower() not in names:
        raise ValueError(unknown_name(what, name, list(names.values())))
    return names[name.lower()]


def one_of(values: tuple[str, ...]) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value.lower() not in values:
            raise ValueError(f"expected {', '.join(values[:-1])} or {values[-1]}")
        return value.lower()

    return parse


def parse_boolean(value: str) -> bool:
    return one_of(("true", "false"))(value) == "true"


def parse_size(value: str) -> int:
    try:
        return sizes.parse_size(value)
    except ValueError:
        raise ValueError("expected bytes, 1 or more, as 134217728, 128m or 128MiB") from None


def parse_arrow_size(value: str) -> int:
    size = parse_size(value)
    if size > _MAX_ARROW_BYTES:
        raise ValueError(f"expected {_MAX_ARROW_BYTES} at the most, as an Arrow column of Spark holds 2 GiB")
    return size


def parse_number(value: str, most: int, least: int = 0) -> int:
    if not re.fullmatch(r"\d{1,19}", value.strip()) or not least <= int(value) <= most:
        raise ValueError(f"expected a number from {least} to {most}")
    return int(value)


def parse_count(value: str) -> int:
    return parse_number(value, MAX_LONG, least=1)


def parse_names(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if "" in names or len(set(names)) < len(names):
        raise ValueError("expected distinct names, with commas between them")
    return names


def parse_columns(value: str) -> tuple[str, ...]:
    names = parse_names(value)
    if len({name.lower() for name in names}) < len(names):
        raise ValueError("expected each column once, in any case")
    return names


def parse_pattern(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"expected a regular expression ({error})") from None
    return value
