"""Map the source's offsets to the target's, by linear ranges: within a range both offsets grow alike.

A range ends before offsets that the target does not have, such as a transaction marker or a gap of compaction. It also
ends before records at the target that another producer wrote. An offset that no range covers is mapped to the end of
the range before it. A consumer that continues there misses no record. So ranges may be dropped, older ones first: a
consumer then reads more records twice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

import numpy as np

from kafkafmt.mirror.topic_names import TopicNames

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kafkafmt.types import TopicPartition

MAX_RANGES = 4096


class MappedRange(NamedTuple):
    """Consecutive offsets at the source and the target: the first ones, and how many.

    topic_id: of the source's topic; None in a map that was written before ids were kept.
    is_closed: the mirror ended after this range, and had sent nothing more of this source.
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


# Ranges that are new or have changed, by source offset; None for a range that was dropped.
Changes: TypeAlias = dict[int, MappedRange | None]


class PartitionMap:
    """The ranges of one partition, ascending.

    exact: offsets of the source that are always translated exactly: their ranges are not dropped.

    >>> import numpy as np
    >>> offsets = PartitionMap()
    >>> offsets.add(np.array([0, 11]), np.array([0, 10]), np.array([10, 5]))    # offset 10 was a marker
    >>> offsets.look_up(4), offsets.look_up(10), offsets.look_up(12), offsets.look_up(99)
    (4, 10, 11, 15)
    """

    def __init__(
        self,
        ranges: Iterable[MappedRange] = (),
        *,
        max_ranges: int = MAX_RANGES,
        exact: Sequence[int] = (),
    ) -> None:
        self._ranges = sorted(ranges)
        self._max_ranges, self._exact = max_ranges, exact
        self.topic_id = self._ranges[-1].topic_id if self._ranges else None
        self.target_topic_id = self._ranges[-1].target_topic_id if self._ranges else None
        self._changes: Changes = {}
        self.stored_end = self.last  # the last range in the store, where it is durable
        self._is_end_known = (
            True  # whether `target_end` is that of the last record, not only the least possible one
        )

    def __len__(self) -> int:
        """Return the number of ranges."""
        return len(self._ranges)

    @property
    def last(self) -> MappedRange | None:
        """The last range; None without ranges."""
        return self._ranges[-1] if self._ranges else None

    @property
    def end(self) -> int | None:
        """The source's offset after the last record known at the target; None without ranges."""
        return self._ranges[-1].source_end if self._ranges else None

    @property
    def target_end(self) -> int | None:
        """The target's offset after the last record known there; None without ranges."""
        return self._ranges[-1].target_end if self._ranges else None

    @property
    def is_closed(self) -> bool:
        """Whether the mirror sent no records after `target_end`. A mirror that was killed may have sent some."""
        return bool(self._ranges) and self._ranges[-1].is_closed

    def close(self) -> None:
        """Note that the map has all sent records: later records after `target_end` are not this mirror's.

        Nothing is noted if the offset of the last record is not known.
        """
        if self._ranges and not self.is_closed and self._is_end_known:
            self._append(self._ranges.pop()._replace(is_closed=True))

    def identify(self, topic_id: str) -> None:
        """Set the id of the source's topic, for the last range and later ones."""
        if self.topic_id != topic_id:
            self.topic_id = topic_id
            self._identify_last()

    def identify_target(self, topic_id: str) -> None:
        """Set the id of the target's topic, for the last range and later ones."""
        if self.target_topic_id != topic_id:
            self.target_topic_id = topic_id
            self._identify_last()

    def _identify_last(self) -> None:
        if self._ranges:
            self._append(self._ranges.pop())

    def clear(self) -> None:
        """Drop all ranges, because the source's topic is another one."""
        for mapped in self._ranges:
            self._changes[mapped.source_offset] = None
        self._ranges.clear()

    def add(
        self, sources: NDArray[np.int64], targets: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> int | None:
        """Add ranges of records: first offsets at source and target, and counts.

        The source's offsets must ascend, and begin after all known ones. A target offset below 0 is not known: the map
        then has no range, only its end.

        Return None, or the lowest offset that the target gave to these records although earlier ones had it. Then
        nothing is added, and the target has lost the earlier records: its topic was created again, or its log was
        truncated.
        """
        if not len(sources):
            return None
        is_known = targets >= 0
        if not is_known.all():
            targets = self._least(targets, counts)
        expected = np.concatenate(([self.target_end or 0], targets[:-1] + counts[:-1]))
        lost = targets[targets < expected]
        if len(lost):
            return int(lost.min())
        follows = (sources[1:] == sources[:-1] + counts[:-1]) & (targets[1:] == expected[1:])
        follows &= is_known[1:] == is_known[:-1]
        edges = [0, *((~follows).nonzero()[0] + 1).tolist(), len(sources)]
        for first, stop in pairwise(edges):
            mapped = MappedRange(
                int(sources[first]),
                int(targets[first]),
                int(sources[stop - 1] + counts[stop - 1] - sources[first]),
            )
            if is_known[first]:
                self._append(mapped)
            else:
                self.anchor(mapped.source_end, mapped.target_end)
        self._is_end_known = bool(is_known[-1])
        if len(self._ranges) > self._max_ranges:
            self._thin_out()
        return None

    def _least(self, targets: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return target offsets with the least possible ones in place of those that are not known."""
        least: NDArray[np.int64] = targets.copy()
        end = self.target_end or 0
        for number, count in enumerate(counts.tolist()):
            if least[number] < 0:
                least[number] = end
            end = int(least[number]) + count
        return least

    def anchor(self, source_offset: int, target_offset: int) -> None:
        """Note that the next records begin at `source_offset`, and get `target_offset` or a later one."""
        self._append(MappedRange(source_offset, target_offset, 0))

    def begin_at(self, source_offset: int) -> None:
        """Note that all records before `source_offset` are at the target, at unknown offsets: look-ups return 0."""
        self.rewind(0)
        self.anchor(source_offset, 0)

    def rewind(self, source_offset: int) -> None:
        """Drop all entries from this offset of the source on, because it is mirrored again."""
        self._is_end_known = True
        number = bisect_left(self._ranges, source_offset, key=_source_offset)
        for mapped in self._ranges[number:]:
            self._changes[mapped.source_offset] = None
        del self._ranges[number:]
        if self._ranges and self._ranges[-1].source_end > source_offset:
            last = self._ranges.pop()
            self._append(last._replace(length=source_offset - last.source_offset))

    def truncate(self, target_end: int) -> None:
        """Drop all entries from this offset of the target on, because the target has lost the records.

        `end` is then the source's offset of the first lost record.
        """
        # A map of version 0.1 may have ranges whose target offsets do not ascend.
        lost = next((one for one in enumerate(self._ranges) if one[1].target_end > target_end), None)
        if lost is None:
            return
        number, first = lost
        for mapped in self._ranges[number:]:
            self._changes[mapped.source_offset] = None
        del self._ranges[number:]
        length = target_end - first.target_offset
        if length >= 0 or not self._ranges:
            self._append(
                MappedRange(first.source_offset, min(first.target_offset, target_end), max(length, 0))
            )

    def look_up(self, source_offset: int) -> int | None:
        """Return where to continue at the target to miss no record from this offset on; None without ranges."""
        if not self._ranges:
            return None
        mapped = self._ranges[self._number_of(source_offset)]
        return mapped.target_offset + min(max(source_offset - mapped.source_offset, 0), mapped.length)

    def _number_of(self, source_offset: int) -> int:
        """Return the number of the range by which an offset is translated."""
        return max(bisect_right(self._ranges, source_offset, key=_source_offset) - 1, 0)

    def take_changes(self) -> Changes:
        """Return the changes since the last call, for the caller to save."""
        changes, self._changes = self._changes, {}
        return changes

    def restore_changes(self, changes: Changes) -> None:
        """Put changes back that could not be saved."""
        self._changes = {**changes, **self._changes}

    def _append(self, mapped: MappedRange) -> None:
        mapped = mapped._replace(topic_id=self.topic_id, target_topic_id=self.target_topic_id)
        if self._ranges:
            last = self._ranges[-1]
            if (last.source_end, last.target_end) == (mapped.source_offset, mapped.target_offset):
                self._ranges.pop()
                mapped = mapped._replace(
                    source_offset=last.source_offset,
                    target_offset=last.target_offset,
                    length=last.length + mapped.length,
                )
        self._ranges.append(mapped)
        self._changes[mapped.source_offset] = mapped

    def _thin_out(self) -> None:
        """Drop every second range of the older half, except the first one, and those of exact offsets."""
        kept = set(map(self._number_of, self._exact))
        dropped = [number for number in range(1, len(self._ranges) // 2, 2) if number not in kept]
        for number in reversed(dropped):
            self._changes[self._ranges.pop(number).source_offset] = None


class OffsetMapStore(Protocol):
    """Stores the ranges of one source. Other sources may use the same file or topic."""

    def load(self, topic_partition: TopicPartition) -> list[MappedRange]:
        """Return the ranges of a partition that this or another mirror saved last."""

    def save(self, changes: Mapping[TopicPartition, Changes]) -> None:
        """Save changes. They are durable when this returns."""

    def close(self) -> None:
        """Close the store."""


class _Truncation(NamedTuple):
    """That the target has lost the records from an offset on. stored_end: see `PartitionMap`; of the map with them."""

    target_end: int
    stored_end: MappedRange | None


class OffsetMap:
    """The maps of this mirror's partitions, and their store.

    names: of the topics at the target. Partitions are the source's. The store has each topic under `names.map_key`.
    exact: the offsets of partitions that are always translated exactly.
    """

    def __init__(
        self,
        store: OffsetMapStore,
        names: TopicNames | None = None,
        exact: Mapping[TopicPartition, Sequence[int]] | None = None,
    ) -> None:
        self._store = store
        self._exact = {} if exact is None else exact
        self._names = TopicNames() if names is None else names
        self._maps: dict[TopicPartition, PartitionMap] = {}
        self._truncated: dict[TopicPartition, _Truncation] = {}  # those that are not durable yet
        self._saved: set[TopicPartition] = set()  # whose changes are not durable yet

    def partition(self, topic_partition: TopicPartition) -> PartitionMap:
        """Return the map of a partition. The first call loads it."""
        found = self._maps.get(topic_partition)
        if found is None:
            found = self._maps[topic_partition] = self._loaded(topic_partition)
            if (truncation := self._truncated.get(topic_partition)) is not None:
                if truncation.stored_end == found.stored_end:
                    found.truncate(truncation.target_end)
                else:  # it was durable after all, or another mirror has moved the partition on
                    del self._truncated[topic_partition]
        return found

    def peek(self, topic_partition: TopicPartition) -> PartitionMap:
        """Return the map of a partition that may be another mirror's: as it is stored now, unless it is loaded."""
        found = self._maps.get(topic_partition)
        return self._loaded(topic_partition) if found is None else found

    def _loaded(self, topic_partition: TopicPartition) -> PartitionMap:
        ranges = self._store.load(self._key(topic_partition))
        return PartitionMap(ranges, exact=self._exact.get(topic_partition, ()))

    def truncate(self, topic_partition: TopicPartition, target_end: int) -> None:
        """Drop all entries of a partition from this offset of the target on, also if it is forgotten before `confirm`.

        The stored map would let a mirror continue after records that the target has lost. If it is another one when the
        partition is loaded again, nothing is dropped.
        """
        known = self._truncated.get(topic_partition)
        found = self.partition(topic_partition)
        found.truncate(target_end)
        if known is not None:
            target_end = min(target_end, known.target_end)
        self._truncated[topic_partition] = _Truncation(target_end, found.stored_end)

    def save(self) -> None:
        """Save all changes. If the store raises, the next call saves them."""
        changes = {partition: found.take_changes() for partition, found in self._maps.items()}
        changes = {partition: some for partition, some in changes.items() if some}
        try:
            if changes:
                self._store.save({self._key(partition): some for partition, some in changes.items()})
                self._saved.update(changes)
        except Exception:
            for partition, some in changes.items():
                self._maps[partition].restore_changes(some)
            raise

    def confirm(self) -> None:
        """Note that what the last call of `save` has saved is durable."""
        for topic_partition in self._saved:
            found = self._maps[topic_partition]
            found.stored_end = found.last
            self._truncated.pop(topic_partition, None)
        self._saved.clear()

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that another mirror takes over, with their unsaved changes but those of `truncate`."""
        for topic_partition in topic_partitions:
            self._maps.pop(topic_partition, None)
            self._saved.discard(topic_partition)

    def forget_all(self) -> None:
        """Forget all partitions, as `forget`: what was saved since `confirm` is not durable."""
        self._maps.clear()
        self._saved.clear()

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _key(self, topic_partition: TopicPartition) -> TopicPartition:
        return topic_partition._replace(topic=self._names.map_key(topic_partition.topic))


def _source_offset(mapped: MappedRange) -> int:
    return mapped.source_offset
