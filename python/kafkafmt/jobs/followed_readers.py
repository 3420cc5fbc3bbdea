"""Read the partitions of a log directory that grows, as a broker's or the target of a mirror, until `stop`.

A partition at its end is looked at again after a fraction of a second. Partitions that appear later are not found.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kafkafmt.jobs.files import is_deleted_folder
from kafkafmt.jobs.partition_readers import PartitionReaders

if TYPE_CHECKING:
    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.log.reader import LogReader
    from kafkafmt.storage import StoragePath
    from kafkafmt.types import TopicPartition

_LOOK_SECONDS = 0.2


class FollowedReaders(PartitionReaders):
    """Read the logs in `folders`, and continue at their ends. Not safe to use from several threads.

    idle_seconds: `read` returns None for a partition without new records for this time, so that a merge does not wait
        for it. None: never. options: as for PartitionReaders.
    """

    def __init__(
        self,
        folders: Mapping[TopicPartition, StoragePath],
        *,
        idle_seconds: float | None,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        super().__init__(folders, **options)
        self._idle_seconds, self._clock = idle_seconds, clock
        self._empty_since: dict[TopicPartition, float] = {}
        self._resting: set[TopicPartition] = set()  # found idle, until the next `read`
        self._idle: set[TopicPartition] = set()
        self._is_stopped = False

    @property
    def is_over(self) -> bool:
        """Whether `stop` was called."""
        return self._is_stopped

    def stop(self) -> None:
        """Read no more: `ready` returns no partition. A signal handler may call this."""
        self._is_stopped = True

    def ready(self, wanted: Sequence[TopicPartition], *, waits: bool = True) -> Sequence[TopicPartition]:
        """Return the partitions whose `read` returns at once, of `wanted` and of those that were idle."""
        self._resting.clear()
        if self._is_stopped:
            return ()
        found = self._found(wanted)
        if found or not waits:
            return found
        time.sleep(_LOOK_SECONDS)
        for one in {*wanted, *self._idle}:
            self._refresh(one)
        now = self._clock()
        self._resting = {one for one in wanted if one not in self._idle and self._is_idle(one, now)}
        return self._found(wanted)

    def is_ready(self, topic_partition: TopicPartition) -> bool:
        """Return whether the partition has more records, or was found idle."""
        return topic_partition in self._resting or self._has_more(topic_partition)

    def read(self, topic_partition: TopicPartition) -> BatchRun | None:
        """Return the next batches; None if there are none now."""
        found = super().read(topic_partition) if self._has_more(topic_partition) else None
        self._resting.discard(topic_partition)
        self._empty_since.pop(topic_partition, None)
        if found is None:
            self._idle.add(topic_partition)
        else:
            self._idle.discard(topic_partition)
        return found

    def _found(self, wanted: Iterable[TopicPartition]) -> list[TopicPartition]:
        found = [one for one in self._idle if self._has_more(one)]
        return found + [one for one in wanted if one not in self._idle and self.is_ready(one)]

    def _has_more(self, topic_partition: TopicPartition) -> bool:
        reader = self._reader(topic_partition)
        return reader is not None and (reader.offset < reader.end_offset or reader.held_by is not None)

    def _is_idle(self, topic_partition: TopicPartition, now: float) -> bool:
        if self._has_more(topic_partition):
            return False
        since = self._empty_since.setdefault(topic_partition, now)
        return self._idle_seconds is not None and now - since >= self._idle_seconds

    def _refresh(self, topic_partition: TopicPartition) -> None:
        reader: LogReader | None = self._reader(topic_partition)
        try:
            if reader is not None:
                reader.refresh()
        except FileNotFoundError:  # a folder that was deleted has no more records
            if not is_deleted_folder(self._folders[topic_partition]):
                raise
