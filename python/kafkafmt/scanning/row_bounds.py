"""What a query engine needs of a scan: bounds of the rows that a predicate can match, and batches of columns."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


def _any(one: TopicPartition) -> bool:
    return True


@dataclass(frozen=True)
class RowBounds:
    """Bounds of the rows that a predicate can match. A predicate may match fewer rows, never others.

    has_partition: whether it can match rows of a partition. offsets: the first one, and the one after the last; None
    for no bound. first_timestamp: in milliseconds.

    There is no last timestamp: as timestamps need not ascend, any later record may be before it.
    """

    has_partition: Callable[[TopicPartition], bool] = _any
    offsets: tuple[int | None, int | None] = (None, None)
    first_timestamp: int | None = None


class FrameSource(Protocol):
    """What a query engine needs of a scan."""

    @property
    def schema(self) -> pa.Schema: ...

    def matching(self, wanted: RowBounds) -> FrameSource:
        """Return the scan without records that are outside of bounds."""
        ...

    def to_batches(self, columns: Sequence[str] | None = None) -> Generator[pa.RecordBatch, None, None]: ...
