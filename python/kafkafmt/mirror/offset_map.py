"""Where the source's offsets are at the target: linear pieces, one as long as both sides count alike.

A piece ends where the source has offsets that the target has not: a transaction's marker, what compaction left out,
or where records at the target are not the mirror's. What a piece does not cover is looked up as the end of the piece
in front of it: whoever goes on reading there misses nothing. So pieces may be dropped, the older ones first, and then
more is read twice.
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
    """Records that follow one another on both sides: where the first is, and how many they are.

    topic_id: of the source's topic; None of a map that was written before ids were kept.
    """

    source_offset: int
    target_offset: int
    length: int
    topic_id: str | None = None

    @property
    def source_end(self) -> int:
        return self.source_offset + self.length

    @property
    def target_end(self) -> int:
        return self.target_offset + self.length


# By its source offset, a piece that is new or longer now, or None for one that is dropped.
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
        self._changes: Changes = {}

    def __len__(self) -> int:
        """Pieces."""
        return len(self._pieces)

    @property
    def end(self) -> int | None:
        """The source's offset behind all that is known to be at the target; None where nothing is."""
        return self._pieces[-1].source_end if self._pieces else None

    @property
    def target_end(self) -> int | None:
        """The target's offset behind all that is known to be there; None where nothing is."""
        return self._pieces[-1].target_end if self._pieces else None

    def identify(self, topic_id: str) -> None:
        """Note of which topic all of this is, and what follows."""
        if self.topic_id != topic_id:
            self.topic_id = topic_id
            if self._pieces:
                self._append(self._pieces.pop())

    def clear(self) -> None:
        """Forget all of it: the source's topic is another one."""
        for piece in self._pieces:
            self._changes[piece.source_offset] = None
        self._pieces.clear()

    def add(self, sources: NDArray[np.int64], targets: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        """Take in stretches of records, ascending on both sides and behind all that is known."""
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
        """Say that what comes next is from `source_offset` on, and goes to `target_offset` or behind it."""
        self._append(Piece(source_offset, target_offset, 0))

    def begin_at(self, source_offset: int) -> None:
        """Say that all in front of `source_offset` is at the target, but not where: readers begin at the start."""
        self.rewind(0)
        self.anchor(source_offset, 0)

    def rewind(self, source_offset: int) -> None:
        """Forget what is known from this offset on: it is mirrored again."""
        number = bisect_left(self._pieces, source_offset, key=_source_offset)
        for piece in self._pieces[number:]:
            self._changes[piece.source_offset] = None
        del self._pieces[number:]
        if self._pieces and self._pieces[-1].source_end > source_offset:
            last = self._pieces.pop()
            self._append(last._replace(length=source_offset - last.source_offset))

    def truncate(self, target_end: int) -> None:
        """Forget what is known from this offset of the target on: the target has lost it, or was made anew.

        `end` is then where the source has what was lost.
        """
        while self._pieces and self._pieces[-1].target_end > target_end:
            last = self._pieces.pop()
            self._changes[last.source_offset] = None
            length = target_end - last.target_offset
            if length >= 0 or not self._pieces:
                self._append(Piece(last.source_offset, min(last.target_offset, target_end), max(length, 0)))

    def look_up(self, source_offset: int) -> int | None:
        """Where to go on at the target so that no record from this offset on is missed; None where nothing is known."""
        if not self._pieces:
            return None
        number = bisect_right(self._pieces, source_offset, key=_source_offset) - 1
        piece = self._pieces[max(number, 0)]
        return piece.target_offset + min(max(source_offset - piece.source_offset, 0), piece.length)

    def take_changes(self) -> Changes:
        """What has changed since this was last asked, to be saved."""
        changes, self._changes = self._changes, {}
        return changes

    def restore_changes(self, changes: Changes) -> None:
        """These were not saved after all."""
        self._changes = {**changes, **self._changes}

    def _append(self, piece: Piece) -> None:
        piece = piece._replace(topic_id=self.topic_id)
        if self._pieces:
            last = self._pieces[-1]
            if (last.source_end, last.target_end) == (piece.source_offset, piece.target_offset):
                self._pieces.pop()
                piece = last._replace(length=last.length + piece.length, topic_id=self.topic_id)
        self._pieces.append(piece)
        self._changes[piece.source_offset] = piece

    def _thin_out(self) -> None:
        """Drop every other one of the older half, but the first."""
        older = len(self._pieces) // 2
        for piece in self._pieces[1:older:2]:
            self._changes[piece.source_offset] = None
        del self._pieces[1:older:2]


class OffsetMapStore(Protocol):
    """Where pieces are kept. Those of other sources may be kept there, too."""

    def load(self, topic_partition: TopicPartition) -> list[Piece]:
        """All pieces of a partition, as saved last, by this mirror or by another."""

    def save(self, changes: Mapping[TopicPartition, Changes]) -> None:
        """Keep what has changed, durably once this returns."""

    def close(self) -> None: ...


class OffsetMap:
    """The maps of the partitions that are this mirror's, and the store that keeps them."""

    def __init__(self, store: OffsetMapStore) -> None:
        self._store = store
        self._maps: dict[TopicPartition, PartitionMap] = {}

    def partition(self, topic_partition: TopicPartition) -> PartitionMap:
        """The map of a partition, loaded when it is asked for first."""
        found = self._maps.get(topic_partition)
        if found is None:
            found = self._maps[topic_partition] = PartitionMap(self._store.load(topic_partition))
        return found

    def save(self) -> None:
        """Keep what has changed."""
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
        """These are another mirror's; what has changed of them and is not saved is lost."""
        for topic_partition in topic_partitions:
            self._maps.pop(topic_partition, None)

    def close(self) -> None:
        self._store.close()


def _source_offset(piece: Piece) -> int:
    return piece.source_offset
