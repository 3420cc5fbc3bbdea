"""The small types that every layer shares."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias, get_args

from _kafkafmt.types import Codec, TimestampType, TooLargeRecord

__all__ = [
    "ISOLATIONS",
    "Codec",
    "Isolation",
    "TimestampType",
    "TooLargeRecord",
    "TopicPartition",
    "is_committed",
]

Isolation: TypeAlias = Literal["read_uncommitted", "read_committed"]
ISOLATIONS = get_args(Isolation)

_FOLDER_NAME = re.compile(r"(?!\.{1,2}-\d+$)(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d+)")


class TopicPartition(NamedTuple):
    """A topic and the number of one of its partitions."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @classmethod
    def from_folder_name(cls, name: str) -> TopicPartition | None:
        """The partition whose log a broker keeps in a folder of that name, or None.

        >>> TopicPartition.from_folder_name("page-views-12")
        TopicPartition(topic='page-views', partition=12)
        >>> TopicPartition.from_folder_name("..-0")  # no topic has that name
        """
        match = _FOLDER_NAME.fullmatch(name)
        return cls(match["topic"], int(match["partition"])) if match else None


def is_committed(isolation: Isolation) -> bool:
    """Whether a read of that isolation leaves out what was not committed (KIP-98). ValueError for another word.

    >>> is_committed("read_committed"), is_committed("read_uncommitted")
    (True, False)
    """
    if isolation not in ISOLATIONS:
        raise ValueError(f"isolation: expected {' or '.join(ISOLATIONS)}, found {isolation!r}")
    return isolation == "read_committed"
