"""The text files of a broker that are no checkpoints: properties and JSON objects, parsed strictly.

meta.properties          lines of `key=value`; `#` begins a comment       `properties_of`
quorum-state             one JSON object                                  `JsonFields`
.kafka_cleanshutdown     one JSON object                                  `JsonFields`
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kafkafmt.log.broker_files.errors import BrokerFileError, shown

MAX_INT16, MAX_INT32, MAX_INT64 = 2**15 - 1, 2**31 - 1, 2**63 - 1

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_INTEGER = re.compile(r"-?[0-9]{1,19}")


def properties_of(data: bytes, name: str) -> dict[str, tuple[int, str]]:
    """Parse a Java properties file. Returns the line (from 1) and the value of each key.

    name: the file's path or URI, for errors. Raises BrokerFileError for a line without `=` and for a key that is there
    twice. Lines that continue on the next one are an error: brokers write none.
    """
    found: dict[str, tuple[int, str]] = {}
    for number, line in enumerate(data.decode("latin-1").split("\n"), 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        key, separator, value = text.partition("=")
        if not separator or not key or text.endswith("\\"):
            raise BrokerFileError(f"line {number}: expected key=value, found {shown(line)}", path=name)
        key = _unescaped(key.strip())
        if key in found:
            raise BrokerFileError(f"line {number}: {shown(key)} is there already", path=name)
        found[key] = number, _unescaped(value.strip())
    return found


def integer_of(text: str, lowest: int, highest: int) -> int | None:
    """Return the integer that a text is; None if it is none, or beyond the bounds."""
    value = int(text) if _INTEGER.fullmatch(text) else None
    return value if value is not None and lowest <= value <= highest else None


@dataclass(frozen=True)
class JsonFields:
    """The fields of a JSON object in a file. Each method raises BrokerFileError for a wrong or missing field.

    name: the file's path or URI, for errors.
    """

    fields: Mapping[str, Any]
    name: str

    @classmethod
    def parse(cls, data: bytes, name: str) -> JsonFields:
        """Parse the bytes of a file. Raises BrokerFileError if they are no JSON object."""
        try:
            fields = json.loads(data.decode())
        except UnicodeDecodeError as error:
            raise BrokerFileError(f"position {error.start}: expected UTF-8 text", path=name) from None
        except json.JSONDecodeError as error:
            message = (
                f"position {error.pos}: expected a JSON object, found {shown(data[error.pos :] or None)}"
            )
            raise BrokerFileError(message, path=name) from None
        except (ValueError, RecursionError):  # a number of thousands of digits, or brackets as deep
            raise BrokerFileError(f"expected a JSON object, found {shown(data)}", path=name) from None
        if not isinstance(fields, dict):
            raise BrokerFileError(f"expected a JSON object, found {shown(data)}", path=name)
        return cls(fields, name)

    def integer(self, key: str, lowest: int, highest: int) -> int:
        """Return the value of an integer field within these bounds."""
        value = self.fields.get(key)
        if type(value) is not int or not lowest <= value <= highest:
            raise self.error(key, f"an integer from {lowest} to {highest}")
        return value

    def text(self, key: str) -> str:
        """Return the value of a text field."""
        value = self.fields.get(key)
        if not isinstance(value, str) or not value.isprintable():
            raise self.error(key, "text")
        return value

    def objects(self, key: str) -> list[JsonFields] | None:
        """Return the value of a field that is a list of objects, or null."""
        value = self.fields.get(key)
        if key in self.fields and value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
            raise self.error(key, "a list of objects")
        return [JsonFields(one, self.name) for one in value]

    def error(self, key: str, expected: str) -> BrokerFileError:
        """Return an error about a field, with what was found."""
        found = repr(self.fields[key])[:80] if key in self.fields else "no such field"
        return BrokerFileError(f"{key}: expected {expected}, found {found}", path=self.name)


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        escape = match[1]
        return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPED.get(escape, escape)

    return _ESCAPE.sub(character, text)
