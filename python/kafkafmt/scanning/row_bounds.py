"""Bounds of the rows that the predicate of a query can match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kafkafmt.types import TopicPartition


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
