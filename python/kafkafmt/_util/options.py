"""Options as text by name, and the table of the options that exist.

The table is the only source of an option's name, type, default and help, for the parser and for the documentation.
Names are case-insensitive. An unknown option is an error, whose message suggests the nearest known name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from kafkafmt._util.names import known_name

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Option:
    """An option of a reader or a writer.

    type: parses the text, or raises ValueError that says what was expected. default: the text of the default, or None
    without a default. help: what the option does, in Markdown. usual_name: that of Spark's own sources, which errors
    about unknown options understand.
    """

    name: str
    type: Callable[[str], Any]
    default: str | None
    help: str
    usual_name: str | None = None


class Options:
    """The options that a user gave. Raises ValueError for an option that is not in the table."""

    def __init__(self, given: Mapping[str, str], table: Iterable[Option]) -> None:
        self._table = {option.name: option for option in table}
        usual = {one.usual_name: one.name for one in self._table.values() if one.usual_name is not None}
        self._given = {
            known_name("option", name, self._table, usual): str(value) for name, value in given.items()
        }

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def __getitem__(self, name: str) -> Any:
        """Return the value of an option, or its default. Raises ValueError that names the option and its text."""
        option = self._table[name]
        value = self.parse(name, option.type)
        return option.type(option.default) if value is None and option.default is not None else value

    def in_snake_case(self, *names: str) -> dict[str, Any]:
        """Return the values of options as fields of a dataclass: `maxBatchBytes` as `max_batch_bytes`."""
        return {re.sub("(?=[A-Z])", "_", name).lower(): self[name] for name in names}

    def get(self, name: str, default: Any) -> Any:
        """Return the value of an option, or `default` if it was not given or the table does not have it."""
        return self[name] if name in self._given else default

    def parse(self, name: str, parse: Callable[[str], _Value]) -> _Value | None:
        """Return an option's text parsed by `parse`, or None if it was not given. Raises ValueError as `[]` does."""
        value = self._given.get(name)
        if value is None:
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f"option {name}: {error}, found {value!r}") from None

    def ensure_none_of(self, names: Iterable[str], reason: str) -> None:
        """Raise ValueError, with `reason`, if one of these options was given."""
        for name in names:
            if name in self:
                raise ValueError(f"option {name}: {reason}")

    def ensure_only(self, names: Iterable[str], reason: str) -> None:
        """Raise ValueError, with `reason`, if an option was given that is not one of these."""
        self.ensure_none_of(self._given.keys() - set(names), reason)

    def ensure_one_of(self, *names: str) -> None:
        """Raise ValueError if more than one of these options was given."""
        found = [name for name in names if name in self]
        if len(found) > 1:
            raise ValueError(f"options {' and '.join(found)}: expected one of them")
