"""What a scan needs of a source of records: partitions with offsets, and tasks that read them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from kafkafmt.scanning.tasks import OffsetRange, ScanTask
    from kafkafmt.types import TopicPartition


class RecordSource(Protocol):
    """Partitions of logs or of a cluster. It can be pickled.

    The names of the columns are those of `kafkafmt.columns.read.COLUMNS`.
    """

    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """Return the offsets of the partitions, also of empty ones. They are fixed at the first call.

        Raises FileNotFoundError and ValueError, in one line, for a source without such topics and partitions; OSError
        of a store; BrokerError of a cluster.
        """
        ...

    @property
    def folders(self) -> Sequence[Path]:
        """The local folders that are read."""
        ...

    def ensure_readable(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Raise KafkaFormatError if one of these ranges ends where damage hides the rest of its partition."""
        ...

    def find_timestamp(
        self, timestamp: int, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int | None]:
        """Return the offset of each partition's first record at or after a time in milliseconds; None without any."""
        ...

    def refreshed(self, read: Mapping[TopicPartition, int], *, has_new: bool) -> RecordSource:
        """Return the source as it is now, from the starts to the ends of the partitions, without bounds of time.

        Its topics and partitions need not exist yet. It has what is known of the source, to save work. read: the next
        offset of each partition; earlier ones will not be read. has_new: whether partitions that `read` lacks are read.
        """
        ...

    def tasks(
        self, ranges: Mapping[TopicPartition, OffsetRange], columns: Sequence[str], split_bytes: int
    ) -> Sequence[ScanTask]:
        """Return tasks of about `split_bytes` that read these ranges, which are within `ranges()`, in order."""
        ...
