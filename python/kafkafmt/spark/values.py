"""Types of options: functions that parse text, or raise ValueError that says what was expected.

`Options` adds the option's name and the text to the message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from kafkafmt._util import sizes

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1

_MAX_ARROW_BYTES = 1024 * 1024 * 1024

# Of the options that both sources and sinks pass to the file system of a URI.
FILE_SYSTEM_HELP = (
    "for the file system of a URI, by its name in `pyarrow.fs`. The query of a URI may also set it"
)


def one_of(values: tuple[str, ...]) -> Callable[[str], str]:
    """Return a function that parses one of `values`, in any case."""

    def parse(value: str) -> str:
        if value.lower() not in values:
            raise ValueError(f"expected {', '.join(values[:-1])} or {values[-1]}")
        return value.lower()

    return parse


def parse_boolean(value: str) -> bool:
    """Parse `true` or `false`."""
    return one_of(("true", "false"))(value) == "true"


def parse_size(value: str) -> int:
    """Parse a size to bytes, as 134217728, 128m or 128MiB."""
    try:
        return sizes.parse_size(value)
    except ValueError:
        raise ValueError("expected bytes, 1 or more, as 134217728, 128m or 128MiB") from None


def parse_arrow_size(value: str) -> int:
    """Parse a size that an Arrow column of Spark can hold, to bytes."""
    size = parse_size(value)
    if size > _MAX_ARROW_BYTES:
        raise ValueError(f"expected at most {_MAX_ARROW_BYTES}, as an Arrow column of Spark holds 2 GiB")
    return size


def parse_number(value: str, most: int, least: int = 0) -> int:
    """Parse a number from `least` to `most`."""
    if not re.fullmatch(r"\d{1,19}", value.strip()) or not least <= int(value) <= most:
        raise ValueError(f"expected a number from {least} to {most}")
    return int(value)


def parse_long(value: str) -> int:
    """Parse a number from 0 to 2^63 - 1."""
    return parse_number(value, MAX_LONG)


def parse_partition(value: str) -> int:
    """Parse the number of a partition."""
    return parse_number(value, MAX_INT)


def parse_count(value: str) -> int:
    """Parse a number from 1 to 2^63 - 1."""
    return parse_number(value, MAX_LONG, least=1)


def parse_names(value: str) -> tuple[str, ...]:
    """Parse distinct names, separated by commas."""
    names = tuple(name.strip() for name in value.split(","))
    if "" in names or len(set(names)) < len(names):
        raise ValueError("expected distinct names, with commas between them")
    return names


def parse_columns(value: str) -> tuple[str, ...]:
    """Parse the names of columns, which are distinct in any case."""
    names = parse_names(value)
    if len({name.lower() for name in names}) < len(names):
        raise ValueError("expected each column once, in any case")
    return names


def parse_pattern(value: str) -> str:
    """Parse a regular expression. Returns its text."""
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"expected a regular expression ({error})") from None
    return value


def json_value(value: str) -> Any:
    """Return the value of JSON; None for other text, and for JSON that Python's parser refuses."""
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None
