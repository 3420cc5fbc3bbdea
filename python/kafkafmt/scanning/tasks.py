"""The parts of a scan: each is read by one process, and can be sent to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkafmt.types import TopicPartition


class OffsetRange(NamedTuple):
    """The offsets of a partition from `start` to before `end`."""

    start: int
    end: int


class ScanTask(Protocol):
    """A part of a scan. It can be pickled."""

    @property
    def ranges(self) -> Mapping[TopicPartition, OffsetRange]:
        """The offsets that the task reads, by partition."""
        ...

    @property
    def size_in_bytes(self) -> int:
        """About how many stored bytes the task reads."""
        ...

    def read(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows by partition and ascending offset. columns: of the scan's columns; None for all.

        Raises KafkaFormatError for damage, after the rows before it; OSError of a store; BrokerError of a cluster.
        """
        ...
