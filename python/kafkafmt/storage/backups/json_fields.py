"""Read the fields of a JSON object, each with a check of its type and range. Other fields are ignored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn

from kafkafmt.storage.backups.errors import BackupError

MAX_INT64 = 2**63 - 1
_SHOWN = 60  # characters of a wrong value that an error shows
_MISSING = object()


class Fields:
    """A JSON object. source: the name of the file, for errors. where: the place of the object in it; "" for all."""

    def __init__(self, value: object, source: str, where: str = "") -> None:
        self._source, self._where = source, where
        self._values: dict[str, object] = {}
        if not isinstance(value, dict):
            self._refuse(where or "the content", "an object", value)
        self._values = value

    @classmethod
    def parse(cls, text: bytes, source: str) -> Fields:
        """Parse a JSON object. Raises BackupError if the text is none."""
        try:
            return cls(json.loads(text), source)
        except (ValueError, RecursionError) as error:
            raise BackupError(f"{source}: expected JSON, found {error}") from None

    def integer(self, name: str, least: int = 0, most: int = MAX_INT64) -> int:
        value = self._value(name)
        if type(value) is not int or not least <= value <= most:
            self.refuse(name, f"an integer from {least} to {most}")
        return value

    def text(self, name: str) -> str:
        value = self._value(name)
        if not isinstance(value, str) or not _is_unicode(value):
            self.refuse(name, "a text")
        return value

    def text_or_none(self, name: str) -> str | None:
        return None if self._value(name) is None else self.text(name)

    def integers(self, name: str, least: int = 0, most: int = MAX_INT64) -> tuple[int, ...]:
        value = self._value(name)
        if not isinstance(value, list) or not all(type(one) is int and least <= one <= most for one in value):
            self.refuse(name, f"a list of integers from {least} to {most}")
        return tuple(value)

    def pairs(self, name: str) -> tuple[tuple[int, int], ...]:
        """Return a list of pairs of integers, none of them negative."""
        value = self._value(name)
        if not isinstance(value, list) or not all(map(_is_pair, value)):
            self.refuse(name, "a list of pairs of integers")
        return tuple((first, second) for first, second in value)

    def texts(self, name: str) -> dict[str, str]:
        """Return an object whose values are texts."""
        value = self._value(name)
        if not isinstance(value, dict) or not all(
            isinstance(one, str) and _is_unicode(one) and _is_unicode(key) for key, one in value.items()
        ):
            self.refuse(name, "an object of texts")
        return value

    def object_or_none(self, name: str) -> Fields | None:
        value = self._value(name)
        return None if value is None else Fields(value, self._source, self._at(name))

    def objects(self, name: str) -> list[Fields]:
        """Return a list of objects."""
        return _objects(self._value(name), self._source, self._at(name))

    def named_objects(self, name: str) -> Iterator[tuple[str, Fields]]:
        """Yield the objects in an object, with their names."""
        value = self._value(name)
        if not isinstance(value, dict):
            self.refuse(name, "an object")
        for key, one in value.items():
            if not _is_unicode(key):
                self.refuse(name, "names of Unicode characters")
            yield key, Fields(one, self._source, f"{self._at(name)}[{shown(key)}]")

    def named_lists(self, name: str) -> Iterator[tuple[str, list[Fields]]]:
        """Yield the lists of objects in an object, with their names."""
        value = self._value(name)
        if not isinstance(value, dict):
            self.refuse(name, "an object")
        for key, one in value.items():
            if not _is_unicode(key):
                self.refuse(name, "names of Unicode characters")
            yield key, _objects(one, self._source, f"{self._at(name)}[{shown(key)}]")

    def refuse(self, name: str, expected: str) -> NoReturn:
        """Raise BackupError for a field."""
        self._refuse(self._at(name), expected, self._values.get(name, _MISSING))

    def _value(self, name: str) -> Any:
        return self._values.get(name, _MISSING)

    def _at(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def _refuse(self, place: str, expected: str, found: object) -> NoReturn:
        told = "nothing" if found is _MISSING else shown(found)
        raise BackupError(f"{self._source}: {place}: expected {expected}, found {told}")


def shown(value: object) -> str:
    """Return a value for an error, cut if it is long."""
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)} entries"
    text = ascii(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _objects(value: object, source: str, where: str) -> list[Fields]:
    if not isinstance(value, list):
        told = "nothing" if value is _MISSING else shown(value)
        raise BackupError(f"{source}: {where}: expected a list, found {told}")
    return [Fields(one, source, f"{where}[{number}]") for number, one in enumerate(value)]


def _is_pair(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(type(one) is int and 0 <= one <= MAX_INT64 for one in value)
    )


def _is_unicode(text: str) -> bool:
    """Whether a text can be encoded: JSON may have half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
