"""The small types that every layer shares."""

from __future__ import annotations

import os
import re
from operator import index
from pathlib import Path
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args

from _kafkafmt.types import (
    Codec,
    CodecLike,
    ControlRecord,
    ControlRecordType,
    LastRecord,
    TimestampType,
    TooLargeRecord,
    as_codec,
    milliseconds,
)

__all__ = [
    "ISOLATIONS",
    "Codec",
    "CodecField",
    "CodecLike",
    "ControlRecord",
    "ControlRecordType",
    "Isolation",
    "LastRecord",
    "TimestampType",
    "TooLargeRecord",
    "TopicPartition",
    "as_codec",
    "as_topic_partition",
    "check_int",
    "checked_path",
    "is_committed",
    "milliseconds",
]

Isolation: TypeAlias = Literal["read_uncommitted", "read_committed"]
ISOLATIONS = get_args(Isolation)

_FOLDER_NAME = re.compile(r"(?!\.{1,2}-\d+$)(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>0|[1-9][0-9]{,9})")
_MAX_PARTITION = 2**31 - 1


class TopicPartition(NamedTuple):
    """A topic and the number of one of its partitions."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def from_folder_name(cls, name: str) -> TopicPartition | None:
        """Return the partition whose log a broker keeps in a folder of this name, or None if no broker names one so.

        >>> TopicPartition.from_folder_name("page-views-12")
        TopicPartition(topic='page-views', partition=12)
        >>> TopicPartition.from_folder_name("..-0")  # no topic has that name
        """
        match = _FOLDER_NAME.fullmatch(name)
        if match is None or int(match["partition"]) > _MAX_PARTITION:
            return None
        return cls(match["topic"], int(match["partition"]))


_Unset = TypeVar("_Unset", bound=Codec | None)


class CodecField(Generic[_Unset]):
    """A dataclass field that accepts a `Codec` or its name, and returns a `Codec` when read.

    It accepts None, too, if its default is None.
    """

    def __init__(self, default: _Unset) -> None:
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object | None, owner: type) -> Codec | _Unset:
        if instance is None:
            return self._default
        found: Codec | _Unset = instance.__dict__[self._name]
        return found

    def __set__(self, instance: object, value: CodecLike | _Unset) -> None:
        is_unset = value is None and self._default is None
        instance.__dict__[self._name] = None if is_unset else as_codec(cast(CodecLike, value), self._name)


def check_int(name: str, value: object, least: int = -(2**63), most: int = 2**63 - 1) -> None:
    """Raise TypeError if `value` is not an integer, and ValueError if it is not `least` to `most`.

    Both name the argument by `name`.
    """
    try:
        number = index(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name}: expected an int, found {type(value).__name__}") from None
    if not least <= number <= most:
        raise ValueError(f"{name}: expected {least} to {most}, found {number}")


def as_topic_partition(value: tuple[str, int]) -> TopicPartition:
    """Return a tuple of a topic and a partition, such as that of another library, as a `TopicPartition`.

    Raises TypeError for anything else.
    """
    if type(value) is TopicPartition:
        return value
    if not isinstance(value, tuple) or len(value) != 2 or not isinstance(value[0], str):
        raise TypeError(f"topic_partition: expected a topic and a partition, found {value!r}")
    check_int("partition", value[1])
    return TopicPartition(*value)


def checked_path(path: str | os.PathLike[str]) -> Path:
    """Return an argument named `path` as a `Path`. Raises TypeError if it is neither a str nor a path of str."""
    found = path if isinstance(path, str) else getattr(type(path), "__fspath__", None) and os.fspath(path)
    if not isinstance(found, str):
        raise TypeError(f"path: expected a str or a path, found {type(path).__name__}")
    return Path(found)


def is_committed(isolation: Isolation) -> bool:
    """Return whether reads with this isolation level return committed records only (KIP-98).

    Raises ValueError for a name that is not in `ISOLATIONS`.

    >>> is_committed("read_committed"), is_committed("read_uncommitted")
    (True, False)
    """
    if isolation not in ISOLATIONS:
        raise ValueError(f"isolation: expected {' or '.join(ISOLATIONS)}, found {isolation!r}")
    return isolation == "read_committed"
