"""The small types that every layer shares."""

from __future__ import annotations

import re
from typing import NamedTuple

from _kafkafmt.types import Codec, TimestampType, TooLargeRecord

__all__ = ["Codec", "TimestampType", "TooLargeRecord", "TopicPartition"]

_FOLDER_NAME = re.compile(r"(?P<topic>[a-zA-Z0-9._-]{1,249})-(?P<partition>\d+)")


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
        """
        match = _FOLDER_NAME.fullmatch(name)
        return cls(match["topic"], int(match["partition"])) if match else None
