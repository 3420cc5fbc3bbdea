"""What a reader reports when it skips a part of a source: damage, and deleted offsets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kafkafmt.types import TopicPartition


class SourceDamage(NamedTuple):
    """Damage in a source: it cannot be read from `offset` to before `next_offset`; None if the end is unknown."""

    topic_partition: TopicPartition
    offset: int
    next_offset: int | None
    message: str


@dataclass(frozen=True)
class OffsetsGone:
    """Offsets, from `from_offset` to before `to_offset`, that the source deleted before they were read."""

    topic_partition: TopicPartition
    from_offset: int
    to_offset: int
