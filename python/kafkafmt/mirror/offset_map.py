"""Map the source's offsets to the target's, by linear pieces: within a piece both offsets grow alike.

A piece ends before offsets that the target does not have, such as a transaction marker or a gap of compaction. It also
ends before records at the target that another producer wrote. An offset that no piece covers is mapped to the end of
the piece before it. A consumer that continues there misses no record. So pieces may be dropped, older ones first: a
consumer then reads more records twice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from kafkafmt.types import TopicPartition

MOST_PIECES = 4096


class Piece(NamedTuple):
    """Consecutive offsets at the source and the target: the first ones, and how many.

    topic_id: of the source's topic; None in a map that was written before ids were kept.
    is_closed: the mirror ended after this piece, and had sent nothing more of this source.
    target_topic_id: of the target's topic; None as for topic_id.
    """

    source_offset: int
    target_offset: int
    length: int
    topic_id: str | None = None
    is_closed: bool = False
    target_topic_id: str | None = None

    @property
    def source_end(self) -> int:
        """The offset after the range at the source."""
        return self.source_offset + self.length

    @property
    def target_end(self) -> int:
        """The offset after the range at the target."""
        return self.target_offset + self.length


# Pieces that are new or have changed, by source offset; None for a piece that was dropped.
Changes: TypeAlias = dict[int, Piece | None]


class PartitionMap:
    """The pieces of one partition, ascending.

    >>> import numpy as np
    >>> offsets = PartitionMap()
    >>> offsets.add(np.array([0, 11]), np.array([0, 10]), np.array([10, 5]))    # offset 10 was a marker
    >>> offsets.look_up(4), offsets.look_up(10), offsets.look_up(12), offsets.look_up(99)
    (4, 10, 11, 15)
    """

    def __init__(self, pieces: Iterable[Piece] = (), *, most_pieces: int = MOST_PIECES) -> None:
        self._pieces = sorted(pieces)
        self._most_pieces = most_pieces
        self.topic_id = self._pieces[-1].topic_id if self._pieces else None
        self.target_topic_id = self._pieces[-1].target_topic_id if self._pieces else None
        self._changes: Changes = {}

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self._pieces)

    @property
    def end(self) -> int | None:
        """The source's offset after the last record known at the target; None without pieces."""
        return self._pieces[-1].source_end if self._pieces else None

    @property
    def target_end(self) -> int | None:
        """The target's offset after the last record known there; None without pieces."""
        return self._pieces[-1].target_end if self._pieces else None

    @property
    def is_closed(self) -> bool:
        """Whether the mirror sent no records after `target_end`. A mirror that was killed may have sent some."""
        return bool(self._pieces) and self._pieces[-1].is_closed

    def close(self) -> None:
        """Note that the map has all sent records: later records after `target_end` are not this mirror's."""
        if self._pieces and not self.is_closed:
            self._append(self._pieces.pop()._replace(is_closed=True))

    def identify(self, topic_id: str) -> None:
        """Set the id of the source's topic, for the last piece and later ones."""
        if self.topic_id != topic_id:
            self.topic_id = topic_id
            self._identify_last()

    def identify_target(self, topic_id: str) -> None:
        """Set the id of the target's topic, for the last piece and later ones."""
        if self.target_topic_id != topic_id:
            self.target_topic_id = topic_id
            self._identify_last()

    def _identify_last(self) -> None:
        if self._pieces:
            self._append(self._pieces.pop())

    def clear(self) -> None:
        """Drop all pieces, because the source's topic is another one."""
        for piece in self._pieces:
            self._changes[piece.source_offset] = None
        self._pieces.clear()

    def add(self, sources: NDArray[np.int64], targets: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Add ranges of records: first offsets at source and target, and counts.

        The offsets must ascend, and begin after all known ones.
        """
        if not len(sources):
            return
        follows = (sources[1:] == sources[:-1] + counts[:-1]) & (targets[1:] == targets[:-1] + counts[:-1])
        edges = [0, *((~follows).nonzero()[0] + 1).tolist(), len(sources)]
        for first, stop in pairwise(edges):
            count = int(sources[stop - 1] + counts[stop - 1] - sources[first])
            self._append(Piece(int(sources[first]), int(targets[first]), count))
        if len(self._pieces) > self._most_pieces:
            self._thin_out()

    def anchor(self, source_offset: int, target_offset: int) -> None:
        """Note that the next records begin at `source_offset`, and get `target_offset` or a later one."""
        self._append(Piece(source_offset, target_offset, 0))

    def begin_at(self, source_offset: int) -> None:
        """Note that all records before `source_offset` are at the target, at unknown offsets: look-ups return 0."""
        self.rewind(0)
        self.anchor(source_offset, 0)

    def rewind(self, source_offset: int) -> None:
        """Drop all entries from this offset of the source on, because it is mirrored again."""
        number = bisect_left(self._pieces, source_offset, key=_source_offset)
        for piece in self._pieces[number:]:
            self._changes[piece.source_offset] = None
        del self._pieces[number:]
        if self._pieces and self._pieces[-1].source_end > source_offset:
            last = self._pieces.pop()
            self._append(last._replace(length=source_offset - last.source_offset))

    def truncate(self, target_end: int) -> None:
        """Drop all entries from this offset of the target on, because the target has lost the records.

        `end` is then the source's offset of the first lost record.
        """
        while self._pieces and self._pieces[-1].target_end > target_end:
            last = self._pieces.pop()
            self._changes[last.source_offset] = None
            length = target_end - last.target_offset
            if length >= 0 or not self._pieces:
                self._append(Piece(last.source_offset, min(last.target_offset, target_end), max(length, 0)))

    def look_up(self, source_offset: int) -> int | None:
        """Return where to continue at the target to miss no record from this offset on; None without pieces."""
        if not self._pieces:
            return None
        number = bisect_right(self._pieces, source_offset, key=_source_offset) - 1
        piece = self._pieces[max(number, 0)]
        return piece.target_offset + min(max(source_offset - piece.source_offset, 0), piece.length)

    def take_changes(self) -> Changes:
        """Return the changes since the last call, for the caller to save."""
        changes, self._changes = self._changes, {}
        return changes

    def restore_changes(self, changes: Changes) -> None:
        """Put changes back that could not be saved."""
        self._changes = {**changes, **self._changes}

    def _append(self, piece: Piece) -> None:
        piece = piece._replace(topic_id=self.topic_id, target_topic_id=self.target_topic_id)
        if self._pieces:
            last = self._pieces[-1]
            if (last.source_end, last.target_end) == (piece.source_offset, piece.target_offset):
                self._pieces.pop()
                piece = piece._replace(
                    source_offset=last.source_offset,
                    target_offset=last.target_offset,
                    length=last.length + piece.length,
                )
        self._pieces.append(piece)
        self._changes[piece.source_offset] = piece

    def _thin_out(self) -> None:
        """Drop every second piece of the older half, except the first piece."""
        older = len(self._pieces) // 2
        for piece in self._pieces[1:older:2]:
            self._changes[piece.source_offset] = None
        del self._pieces[1:older:2]


class OffsetMapStore(Protocol):
    """Stores the pieces of one source. Other sources may use the same file or topic."""

    def load(self, topic_partition: TopicPartition) -> list[Piece]:
        """Return the pieces of a partition that this or another mirror saved last."""

    def save(self, changes: Mapping[TopicPartition, Changes]) -> None:
        """Save changes. They are durable when this returns."""

    def close(self) -> None:
        """Close the store."""


class OffsetMap:
    """The maps of this mirror's partitions, and their store."""

    def __init__(self, store: OffsetMapStore) -> None:
        self._store = store
        self._maps: dict[TopicPartition, PartitionMap] = {}

    def partition(self, topic_partition: TopicPartition) -> PartitionMap:
        """Return the map of a partition. The first call loads it."""
        found = self._maps.get(topic_partition)
        if found is None:
            found = self._maps[topic_partition] = PartitionMap(self._store.load(topic_partition))
        return found

    def save(self) -> None:
        """Save all changes. If the store raises, the next call saves them."""
        changes = {partition: found.take_changes() for partition, found in self._maps.items()}
        changes = {partition: some for partition, some in changes.items() if some}
        try:
            if changes:
                self._store.save(changes)
        except Exception:
            for partition, some in changes.items():
                self._maps[partition].restore_changes(some)
            raise

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that another mirror takes over, with their unsaved changes."""
        for topic_partition in topic_partitions:
            self._maps.pop(topic_partition, None)

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def _source_offset(piece: Piece) -> int:
    return piece.source_offset
