"""Read the partitions of a log directory from given offsets, run by run.

All readers share one read buffer: a run is valid until the next one is read. Each log is read up to the end that it had
when its reader was opened. Damage raises an error, or is reported and skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kafkafmt._util.descriptors import max_open_segments
from kafkafmt._util.user_errors import UserError
from kafkafmt.errors import CorruptRecordError
from kafkafmt.jobs.files import is_deleted_folder
from kafkafmt.jobs.readers import Readers
from kafkafmt.log.directory import LogDirectory
from kafkafmt.log.gaps import OffsetsGone, SourceDamage
from kafkafmt.log.open_readers import OpenReaders, read_memory
from kafkafmt.log.open_segment import READ_BYTES
from kafkafmt.log.reader import LogReader
from kafkafmt.log.segment_files import SegmentCache
from kafkafmt.log.tail import UnreadTail
from kafkafmt.log.time_range import EVERYTHING, TimeRange
from kafkafmt.log.topics import Topics, is_chosen, selection_error
from kafkafmt.storage import no_folder_reason
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.storage import StoragePath

# The bytes that reading uses, for any number of partitions: the buffers of LogReader and of SegmentCache, and one
# larger batch.
READER_BYTES = 2 * READ_BYTES + 1024 * 1024


class NoLogsError(UserError):
    """There is nothing to read; the message says why, in one line."""


def select_logs(source: StoragePath, topics: Topics = None) -> dict[TopicPartition, StoragePath]:
    """Return the folder of each partition in `source`, a log directory or the folder of one partition.

    topics: names and globs, each of which must match a topic. If None, Kafka's own topics of a log directory are left
    out (see `kafkafmt.log.topics`). Raises NoLogsError if `source` is not a folder, or no partition is left.
    """
    reason = no_folder_reason(source)
    if reason is not None:
        raise NoLogsError(f"{source}: {reason}")
    found = LogDirectory(source).folders()
    if not found:
        raise NoLogsError(f"{source}: expected folders of partitions, as <topic>-<partition>, found none")

    chosen = {
        one: found[one] for one in sorted(found) if is_chosen(one, topics, is_named=found[one] == source)
    }
    error = selection_error(found, topics, is_empty=not chosen)
    if error is not None:
        raise NoLogsError(f"{source}: {error}")
    return chosen


class PartitionReaders(Readers):
    """Read the logs in `folders`. Not safe to use from several threads.

    is_committed: leave out records of open and of aborted transactions.
    skips_damage: skip damage and call `on_damage` with it. Otherwise CorruptRecordError is raised, which names
        partition and offset.
    from_segment_start: read also records below the log start offset.
    times: bounds each partition by the timestamps of its records.
    most_open: how many segments stay open to read them, and as many to find the ends of logs.

    Attributes:
        unread_tails: the bytes after the last whole batch, for each opened log that has some.
        overlapping_segments: for each opened log, how many segments repeat offsets of earlier segments. Each offset is
            read once.
        gone: offsets that were deleted before they were read.
        deleted: partitions whose folder was deleted before its reader was opened.
    """

    def __init__(
        self,
        folders: Mapping[TopicPartition, StoragePath],
        *,
        is_committed: bool = True,
        skips_damage: bool = False,
        on_damage: Callable[[SourceDamage], None] = lambda damage: None,
        from_segment_start: bool = False,
        times: TimeRange = EVERYTHING,
        most_open: int | None = None,
    ) -> None:
        self.unread_tails: dict[TopicPartition, UnreadTail] = {}
        self.overlapping_segments: dict[TopicPartition, int] = {}
        self.gone: list[OffsetsGone] = []
        self.deleted: list[TopicPartition] = []
        self._from_segment_start = from_segment_start
        self._times = times
        self._starts: dict[TopicPartition, int] = {}
        self._folders = folders
        self._is_committed = is_committed
        self._skips_damage = skips_damage
        self._on_damage = on_damage
        if most_open is None:
            most_open = max_open_segments()
        self._cache = SegmentCache(most_open)
        self._open_readers = OpenReaders(most_open)
        self._memory = read_memory()
        self._readers: dict[TopicPartition, LogReader | None] = {}

    @property
    def partitions(self) -> list[TopicPartition]:
        """Return all partitions, sorted."""
        return sorted(self._folders)

    @property
    def owned(self) -> list[TopicPartition]:
        """Return all partitions, sorted."""
        return self.partitions

    @property
    def is_over(self) -> bool:
        """Return True: the end of each log is known."""
        return True

    def ready(self, wanted: Sequence[TopicPartition], *, waits: bool = True) -> Sequence[TopicPartition]:
        """Return `wanted`: each log can be read at any time."""
        return wanted

    def is_ready(self, topic_partition: TopicPartition) -> bool:
        """Return True: each log can be read at any time."""
        return True

    def seek(self, topic_partition: TopicPartition, offset: int | None) -> int:
        """Continue at an offset; None is the first one to read. Returns the offset, at least the log start offset.

        The next read begins with the batch that contains it.
        """
        reader = self._reader(topic_partition)
        if reader is None:
            return 0 if offset is None else offset
        reader.seek(self._starts[topic_partition] if offset is None else offset)
        return reader.offset

    def offset(self, topic_partition: TopicPartition) -> int:
        """Return the offset at which the next read begins; 0 if the folder was deleted before it was opened."""
        reader = self._reader(topic_partition)
        return 0 if reader is None else reader.offset

    def end_offset(self, topic_partition: TopicPartition) -> int | None:
        """Return the offset up to which the log is read; None if its folder was deleted before it was opened."""
        reader = self._reader(topic_partition)
        return None if reader is None else reader.end_offset

    def rest(self, topic_partition: TopicPartition) -> None:
        """Release the open file of the partition; the next read opens it again."""
        reader = self._reader(topic_partition)
        if reader is not None:
            reader.rest()

    def read(self, topic_partition: TopicPartition) -> BatchRun | None:
        """Return the next batches, up to READ_BYTES or one larger batch; None at the end.

        Raises CorruptRecordError for damage, unless it is skipped, and OSError.
        """
        reader = self._reader(topic_partition)
        if reader is not None:
            self._open_readers.keep(reader)
        while reader is not None:
            try:
                found = reader.read(reader.end_offset, READ_BYTES)
            except FileNotFoundError:
                if not is_deleted_folder(reader.folder):
                    raise
                self._note_gone(topic_partition, reader.offset, reader.end_offset)
                reader.seek(reader.end_offset)
                return None
            if not isinstance(found, SourceDamage):
                return found
            self.meet(found)
        return None

    def meet(self, damage: SourceDamage) -> None:
        """Report damage to `on_damage`. Raises CorruptRecordError if damage is not skipped."""
        if not self._skips_damage:
            raise CorruptRecordError(f"{damage.topic_partition} at offset {damage.offset}: {damage.message}")
        self._on_damage(damage)

    def stop(self) -> None:
        """Do nothing: `ready` never waits."""

    def leave(self) -> None:
        """Do nothing: logs have no group."""

    def _note_gone(self, topic_partition: TopicPartition, from_offset: int, to_offset: int) -> None:
        if from_offset < to_offset:
            self.gone.append(OffsetsGone(topic_partition, from_offset, to_offset))

    def _reader(self, topic_partition: TopicPartition) -> LogReader | None:
        """Return the reader, opened at the first call; None if the folder was deleted before that."""
        if topic_partition not in self._readers:
            self._readers[topic_partition] = self._open(topic_partition)
        return self._readers[topic_partition]

    def _open(self, topic_partition: TopicPartition) -> LogReader | None:
        folder = self._folders[topic_partition]
        try:
            reader = LogReader(
                topic_partition,
                folder,
                self._cache,
                self._memory,
                is_committed=self._is_committed,
                keeps_control_batches=False,
                trims_first_batch=False,
                from_segment_start=self._from_segment_start,
                on_gone=partial(self._note_gone, topic_partition),
            )
        except FileNotFoundError:
            if not is_deleted_folder(folder):
                raise
            self.deleted.append(topic_partition)
            return None
        reader.bound(self._times, skips_damage=self._skips_damage, on_damage=self.meet)
        self._starts[topic_partition] = reader.offset
        if (tail := reader.unread_tail) is not None:
            self.unread_tails[topic_partition] = tail
        if reader.overlaps:
            self.overlapping_segments[topic_partition] = len(reader.overlaps)
        return reader
