"""A target that writes sealed segments: the source's batches with the source's offsets, each exactly once.

Batches are written to a spool, a local folder. A segment is sealed when it is full or old enough, or when the spool is
full. Threads then store sealed segments, while the mirror continues. A `SegmentStore` says where, and where each
partition continues after a restart. Only segments that are stored count.

If another mirror has stored a segment in place of this one's, all partitions begin again where the store has them.
"""

from __future__ import annotations

import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from kafkafmt._util.descriptors import max_open_logs
from kafkafmt._util.staging import StagedFolder
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.batch_writer import ensure_ascending, segment_base_offset
from kafkafmt.log.segment import LOG_SUFFIX
from kafkafmt.log.topic_properties import SEGMENT_BYTES
from kafkafmt.mirror.protocols import PartitionError, SourceTopic, Target, contiguous_ranges, record_count
from kafkafmt.mirror.statistics import Moved
from kafkafmt.mirror.targets.spool import SealedSegment, SpooledSegment

if TYPE_CHECKING:
    from uuid import UUID

    from _kafkafmt.batches.scan import BatchRun
    from kafkafmt.log.producer_states import ProducerStates
    from kafkafmt.mirror.options import MirrorOptions
    from kafkafmt.mirror.statistics import Statistics, Stopped, Way
    from kafkafmt.types import TopicPartition

_log = structlog.get_logger()

_STORED_AT_ONCE = 4


class SegmentConflictError(Exception):
    """Another mirror has stored a segment in place of one of this mirror. The message is the path."""


class SegmentStore(Protocol):
    """Where sealed segments are stored. All methods but `put` are called by the mirror's thread.

    spool: the path of the spool: its name is free, and its folder exists.
    """

    spool: Path

    def prepare(self, topics: Mapping[str, SourceTopic], *, again: bool) -> Mapping[str, Mapping[str, str]]:
        """Note the topics at the source, as `Target.prepare`. Return the configuration of their segments."""

    def identify(self, topic_partition: TopicPartition, topic_id: UUID | None) -> None:
        """Compare the topic id with that of the stored segments, as `Target.identify`."""

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        """Return where the stored segments end, as `Target.resume_offset`."""

    def producers(self, topic_partition: TopicPartition) -> ProducerStates:
        """Return the states of the producers where the stored segments end. Called when the first segment is opened."""

    def begin(self, topic_partition: TopicPartition, position: int) -> None:
        """Note that the partition begins at this position of the source.

        Raises PartitionError if the stored segments must not be continued.
        """

    def put(self, segment: SealedSegment, earlier: Future[Any] | None) -> Any:
        """Store the files of a segment. Returns what `add` needs. Called in threads.

        earlier: stores the segment before this one; None if that was added. It was started before this call.

        Raises OSError, and SegmentConflictError.
        """

    def add(self, segment: SealedSegment, stored: Any) -> None:
        """Note that a segment was stored. The segments of a partition arrive in order."""

    def keep_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note the source's positions. All batches before them are in stored segments."""

    def wants_open_segments(self) -> bool:
        """Return whether open segments must be stored before the next `complete_commit`."""
        return False

    def complete_commit(self, *, is_last: bool, has_failed: bool = False) -> None:
        """Make what was noted durable. is_last: no further call follows. has_failed: because of an error."""

    def forget(self, topic_partition: TopicPartition) -> None:
        """Note that another mirror may write to the partition until its next `resume_offset`."""
        return

    def close(self) -> None:
        """Release locks."""


class SealedTarget(Target):
    """Seals segments of the source's batches, and stores them in a `SegmentStore`."""

    def __init__(self, store: SegmentStore, statistics: Statistics, options: MirrorOptions) -> None:
        self._store, self.statistics = store, statistics
        self._sealing = options.sealing
        self._way: Way = "deep" if options.is_deep else "raw"
        self._max_decompressed_bytes = options.memory.max_decompressed_bytes
        self._spool = StagedFolder(store.spool, is_private=True)
        self._names = count()
        self._threads = ThreadPoolExecutor(_STORED_AT_ONCE, "store")
        self._configs: dict[str, Mapping[str, str]] = {}
        self._topic_ids: dict[TopicPartition, UUID | None] = {}
        self._producers: dict[TopicPartition, ProducerStates] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._open: OrderedDict[TopicPartition, SpooledSegment] = OrderedDict()  # last used last
        self._max_open = max(max_open_logs(), 1)
        self._storing: defaultdict[TopicPartition, deque[tuple[SealedSegment, Future[Any]]]] = defaultdict(
            deque
        )
        self._open_bytes = self._storing_bytes = 0
        self._ending: set[TopicPartition] = set()
        # What the next commit waits for, if the store wants all batches.
        self._awaited: list[Future[Any]] | None = None
        # Another mirror has stored a segment in place of one in `_storing`, where these stay until `forget`.
        self._lost: set[TopicPartition] = set()
        self._has_loss = False

    def prepare(self, topics: Mapping[str, SourceTopic], *, again: bool = False) -> None:
        self._configs.update(self._store.prepare(topics, again=again))

    def take_lost(self, topic_partitions: Collection[TopicPartition]) -> Collection[TopicPartition]:
        if not self._has_loss:
            return ()
        self._has_loss = False
        # What is being stored must be in the store before the partitions begin again.
        wait([future for storing in self._storing.values() for _, future in storing])
        self._collect()
        return topic_partitions

    def identify(self, topic_partition: TopicPartition, topic_id: UUID | None) -> None:
        self._topic_ids[topic_partition] = topic_id
        self._store.identify(topic_partition, topic_id)

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        return self._store.resume_offset(topic_partition)

    def begin(self, topic_partition: TopicPartition, position: int) -> None:
        self._ending.discard(topic_partition)
        self._ends[topic_partition] = position
        self._producers.pop(topic_partition, None)
        self._store.begin(topic_partition, position)

    def take(self, topic_partition: TopicPartition, run: BatchRun) -> None:
        try:
            for first, stop in contiguous_ranges(run):
                self._append(topic_partition, run, first, stop)
        except KafkaFormatError as error:
            raise PartitionError(str(error)) from None
        moved = Moved(len(run), record_count(run), int(run.index["size"].sum()))
        self.statistics.count(topic_partition, moved, self._way, int(run.index["max_timestamp"][-1]))
        if self._open_bytes + self._storing_bytes > self._sealing.spool_bytes:
            self._empty_spool()

    def advance(self) -> Iterator[Stopped]:
        """Note what was stored, and seal segments that are old enough. Raises OSError if storing has failed."""
        self._collect()
        due = time.monotonic() - self._sealing.interval
        for one in [one for one, segment in self._open.items() if segment.opened <= due]:
            self._seal(one)
        return iter(())

    def not_durable(self, topic_partition: TopicPartition) -> int | None:
        storing = self._storing.get(topic_partition)
        if storing:
            return storing[0][0].base_offset
        segment = self._open.get(topic_partition)
        return None if segment is None else segment.base_offset

    def finish(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Seal the segments of these partitions. The next `make_durable` waits until they are stored."""
        for one in topic_partitions:
            self._ending.add(one)
            self._seal(one)

    def make_durable(self) -> None:
        """Wait until the segments of finished partitions are stored. Raises OSError if that has failed."""
        self._collect()
        while True:
            ending = self._ending - self._lost
            left = [future for one in ending for _, future in self._storing.get(one, ())]
            if not left:
                return
            wait(left, return_when=FIRST_COMPLETED)
            self._collect()

    def keep_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        self._store.keep_positions(positions)

    def complete_commit(self, *, is_last: bool, has_failed: bool = False) -> None:
        """Complete a commit of the store; if that wants all batches, once the open segments are stored."""
        if not is_last and self._store.wants_open_segments():
            if self._awaited is None:
                for one in list(self._open):
                    self._seal(one)
                self._awaited = [future for storing in self._storing.values() for _, future in storing]
            if not all(future.done() for future in self._awaited):
                return
            self._collect()
        self._awaited = None
        self._store.complete_commit(is_last=is_last, has_failed=has_failed)

    def forget(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions. A segment that is not sealed is fetched again by the mirror that takes them over."""
        for one in topic_partitions:
            segment = self._open.pop(one, None)
            if segment is not None:
                self._open_bytes -= segment.size_in_bytes
                segment.remove()
            self._drop_lost(one)
            self._ending.discard(one)
            self._topic_ids.pop(one, None)
            self._producers.pop(one, None)
            self._ends.pop(one, None)
            self._store.forget(one)

    def close(self) -> None:
        """Remove the spool. What is being stored is waited for."""
        try:
            self._threads.shutdown(cancel_futures=True)
            self.forget(list(self._open))
        finally:
            self._spool.remove()
            self._store.close()

    def _append(self, topic_partition: TopicPartition, run: BatchRun, first: int, stop: int) -> None:
        ensure_ascending(run.index[first:stop], self._ends[topic_partition], self._spool.path)
        most_bytes = self._sealing.segment_bytes
        own = self._configs.get(topic_partition.topic, {}).get(SEGMENT_BYTES)
        if own is not None:
            most_bytes = min(most_bytes, max(int(own), 1))
        while first < stop:
            segment = self._segment(topic_partition, run, first)
            fitting = segment.fitting(run.index[first:stop], most_bytes)
            if fitting:
                segment.append_run(run, first, first + fitting)
                self._open_bytes += int(run.index["size"][first : first + fitting].sum())
                first += fitting
                self._ends[topic_partition] = int(run.index["last_offset"][first - 1]) + 1
            if first < stop:
                self._seal(topic_partition)

    def _segment(self, topic_partition: TopicPartition, run: BatchRun, first: int) -> SpooledSegment:
        """Return the open segment of a partition, or a new one for batch `first` of a run."""
        found = self._open.get(topic_partition)
        if found is None:
            producers = self._producers.get(topic_partition)
            if producers is None:
                producers = self._producers[topic_partition] = self._store.producers(topic_partition)
            found = self._open[topic_partition] = SpooledSegment(
                self._spool.path / str(next(self._names)),
                topic_partition,
                self._topic_ids.get(topic_partition),
                segment_base_offset(run, first, self._ends[topic_partition], self._max_decompressed_bytes),
                producers,
            )
        self._open.move_to_end(topic_partition)
        # Only the last `_max_open` had open files before, so at most one segment must be released.
        for one in islice(reversed(self._open.values()), self._max_open, self._max_open + 1):
            one.release()
        return found

    def _seal(self, topic_partition: TopicPartition) -> None:
        """Seal the open segment of a partition, if it has one, and let a thread store it."""
        segment = self._open.get(topic_partition)
        if segment is None:
            return
        sealed = segment.seal()
        del self._open[topic_partition]  # now: a segment that could not be sealed must stay in `not_durable`
        self._open_bytes -= segment.size_in_bytes
        self._storing_bytes += segment.size_in_bytes
        storing = self._storing[topic_partition]
        earlier = storing[-1][1] if storing else None
        storing.append((sealed, self._threads.submit(self._store.put, sealed, earlier)))

    def _collect(self) -> None:
        """Note what was stored, and remove it from the spool. Raises OSError if storing has failed."""
        for topic_partition in self._storing.keys() - self._lost:
            storing = self._storing[topic_partition]
            while storing and storing[0][1].done():
                sealed, future = storing[0]
                try:
                    self._store.add(sealed, future.result())
                except SegmentConflictError as error:
                    self._lost.add(topic_partition)
                    self._has_loss = True
                    _log.warning(
                        "another mirror has stored these records; all partitions begin again after what is stored",
                        partition=str(topic_partition),
                        path=str(error),
                    )
                    break
                storing.popleft()
                self._remove_stored(sealed)
            if not storing:
                del self._storing[topic_partition]

    def _drop_lost(self, topic_partition: TopicPartition) -> None:
        if topic_partition in self._lost:
            self._lost.discard(topic_partition)
            storing = self._storing.pop(topic_partition)
            wait([future for _, future in storing])
            for sealed, _ in storing:
                self._remove_stored(sealed)

    def _remove_stored(self, sealed: SealedSegment) -> None:
        """Remove a segment from the spool."""
        self._storing_bytes -= sealed.size_in_bytes
        for path in sealed.files.values():
            path.unlink(missing_ok=True)
        sealed.files[LOG_SUFFIX].parent.rmdir()

    def _empty_spool(self) -> None:
        """Seal the largest segments, and wait until the spool has room."""
        most = self._sealing.spool_bytes
        while self._open_bytes > most // 2:
            self._seal(max(self._open, key=lambda one: self._open[one].size_in_bytes))
        while not self._lost and self._storing_bytes and self._open_bytes + self._storing_bytes > most:
            futures = [future for storing in self._storing.values() for _, future in storing]
            wait(futures, return_when=FIRST_COMPLETED)
            self._collect()
