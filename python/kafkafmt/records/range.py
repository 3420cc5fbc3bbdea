"""A range of bytes of other records."""

from __future__ import annotations

from typing import Any

from kafkafmt.errors import KafkaFormatError
from kafkafmt.records.base import Records, RunFilter


class RecordsRange(Records):
    """The records between two positions of other records. The owner of those closes them.

    start: where a batch begins. end: any position. run_filter: takes the runs as they are read, and yields the runs
    that readers get.
    """

    def __init__(self, source: Records, start: int, end: int, run_filter: RunFilter | None = None) -> None:
        super().__init__(start, end, source.topic_partition, source.max_decompressed_bytes, run_filter)
        self._source = source
        self.is_remote = source.is_remote

    def with_source(self, error: KafkaFormatError) -> KafkaFormatError:
        """Name the source in the error, and return the error."""
        return self._source.with_source(error)

    def _memory(self, size: int) -> bytearray | None:
        return self._source._memory(size)

    def read_at(self, position: int, size: int, memory: bytearray | None = None) -> memoryview | bytes:
        """Read up to `size` bytes from `position` in the source."""
        return self._source.read_at(position, size, memory)

    def ensure_reaches(self, end: int) -> None:
        """Raise EOFError as the source does, if that has become shorter."""
        self._source.ensure_reaches(end)

    def write_to(self, channel: Any, position: int | None = None, length: int | None = None) -> int:
        """Write bytes from `position` to a channel, as the other records do; return how many it took."""
        position, end = self._range(position, length)
        return self._source.write_to(channel, position, end - position)
