"""A log directory as a source: the log of each partition, which may grow meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from uuid import UUID

import structlog

from kafkafmt._util.descriptors import max_open_segments
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log import LogDirectory
from kafkafmt.log.compaction import cleaned_topics, shows_compaction
from kafkafmt.log.directory import FollowedFolders, nested_log_directory, no_segments_message
from kafkafmt.log.directory_topics import DirectoryTopic, read_directory_topics
from kafkafmt.log.gaps import OffsetsGone, SourceDamage
from kafkafmt.log.open_readers import OpenReaders, read_memory
from kafkafmt.log.partition_metadata import read_topic_id
from kafkafmt.log.reader import LogReader
from kafkafmt.log.segment_files import SegmentCache
from kafkafmt.log.time_range import TimeRange
from kafkafmt.log.topic_configs import TopicConfig
from kafkafmt.log.topics import is_internal_topic, left_out_in_words, selection_error, topic_matches
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.mirror.protocols import NOTHING_DELETED, TOPICS_AWAITED, Source, SourceRun, SourceTopic
from kafkafmt.storage import StoragePath
from kafkafmt.types import TopicPartition

_log = structlog.get_logger()

# How often logs are checked for growth, and the folder for new partitions.
_LOOK_SECONDS = 0.2
_LIST_SECONDS = 5.0
# A log that was compacted keeps that policy, but no record in it ever becomes old enough for compaction.
_NEVER_CLEANED = {
    **NOTHING_DELETED,
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": str(2**63 - 1),
}


class DirectorySource(Source):
    """Batches of a log directory.

    A partition whose folder is deleted is removed from `partitions`. Until the next poll its position and its lag are
    known. A folder that replaces another is a new partition.
    Offsets are not committed: the target knows them.

    Raises FileNotFoundError or NotADirectoryError if there is no such folder, and IniError for an invalid topics.ini.
    Raises MirrorError for a folder without partitions, unless the mirror follows it.
    """

    def __init__(self, path: StoragePath, options: MirrorOptions) -> None:
        self._directory = LogDirectory(path)
        self._folders = FollowedFolders(self._directory)
        self.name = str(path.resolve())
        self._options = options
        self._cache = SegmentCache(max_open_segments())
        self._open = OpenReaders(max_open_segments())
        self._memory = read_memory()
        self._readers: dict[TopicPartition, LogReader] = {}
        self._deleted: dict[TopicPartition, LogReader] = {}  # by the last poll
        self._passed: dict[
            TopicPartition, list[SourceDamage]
        ] = {}  # skipped before the start, to be reported
        self._paused: set[TopicPartition] = set()
        self._unbounded: dict[TopicPartition, str] = {}  # the damage that prevents the search for the end
        self._ends: dict[TopicPartition, int] = {}
        self._inodes: dict[TopicPartition, int] = {}
        self._begun: set[TopicPartition] = set()
        self._gone: list[OffsetsGone] = []
        self._safe_configs: dict[str, Mapping[str, str]] = {}
        self._topic_ids: dict[str, UUID] = {}  # by the metadata of the cluster
        self._warned: set[str] = set()
        self._listed = float("-inf")
        self._list()
        self._check_topics(path)
        if not self._readers:
            if not options.is_following or nested_log_directory(path) is not None:
                if self._folders.folders:
                    raise MirrorError(self._no_topics_message(path))
                raise MirrorError(no_segments_message(path))
            _log.warning("there are no partitions in the folder yet", source=str(path))
        left_out = left_out_in_words(path, "a mirror does not copy them")
        if left_out is not None:
            _log.info(left_out)

    def topics(self) -> Mapping[str, SourceTopic]:
        """Return the topics, as `topics.ini` or the cluster's metadata has them; else configured to delete nothing."""
        read = read_directory_topics(self._directory.path)
        for warning in read.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                _log.warning(warning)
        counts: dict[str, int] = {}
        for topic, partition in self._readers:
            counts[topic] = max(counts.get(topic, 0), partition + 1)
        found = {}
        for topic, count in counts.items():
            known = read.topics.get(topic)
            if known is None or not self._is_same(topic, known):
                found[topic] = SourceTopic(TopicConfig(count, self._safe_config(topic)), is_known=False)
                continue
            if known.topic_id is not None:
                self._topic_ids[topic] = known.topic_id
            config = TopicConfig(max(count, known.config.partitions or 0), known.config.configs)
            found[topic] = SourceTopic(config)
        return found

    def _is_same(self, topic: str, known: DirectoryTopic) -> bool:
        """Whether a topic of the metadata is that of the folders, and not a later topic of the same name."""
        if known.is_from_file or known.topic_id is None:
            return True
        ids = {read_topic_id(reader.folder) for one, reader in self._readers.items() if one.topic == topic}
        return known.topic_id in ids or ids == {None}

    def selected_topics(self) -> set[str]:
        return {topic for topic, _ in self._readers}

    def _safe_config(self, topic: str) -> Mapping[str, str]:
        known = self._safe_configs.get(topic)
        if known is None:
            folders = [reader.folder for one, reader in self._readers.items() if one.topic == topic]
            is_compacted = topic in cleaned_topics(self._directory.path) or shows_compaction(folders)
            known = self._safe_configs[topic] = _NEVER_CLEANED if is_compacted else NOTHING_DELETED
        return known

    def topic_id(self, topic_partition: TopicPartition) -> UUID | None:
        """Return the id in `partition.metadata`, or that of the topic in the cluster's metadata."""
        found = read_topic_id(self._readers[topic_partition].folder)
        return self._topic_ids.get(topic_partition.topic) if found is None else found

    def poll(self, timeout: float) -> Iterator[SourceRun | SourceDamage]:
        """Yield a run of each partition that has one. If none has, wait, and check again for growth."""
        found = False
        self._deleted.clear()
        for topic_partition, reader in list(self._readers.items()):
            if topic_partition in self._paused:
                continue
            position = reader.offset
            if (message := self._unbounded.get(topic_partition)) is not None:
                found = True
                yield SourceDamage(topic_partition, position, None, message)
                continue
            for damage in self._passed.pop(topic_partition, ()):
                yield damage
                self.seek(topic_partition, position)  # the mirror may have moved to the end of the damage
            read = reader.read(self._bound(topic_partition))
            self._open.keep(reader)
            if read is not None:
                found = True
                if isinstance(read, SourceDamage):
                    yield read
                else:
                    yield SourceRun(topic_partition, read, position)
        if found:
            return
        time.sleep(min(timeout, _LOOK_SECONDS))
        if self._options.is_following:
            self._refresh()

    def gone(self) -> Iterator[OffsetsGone]:
        gone, self._gone = self._gone, []
        yield from gone

    def _note_gone(self, topic_partition: TopicPartition, from_offset: int, to_offset: int) -> None:
        if topic_partition in self._begun:
            self._gone.append(OffsetsGone(topic_partition, from_offset, to_offset))

    @property
    def fetched_bytes(self) -> int:
        """The size of the memory that all readers share. A batch may be larger."""
        return len(self._memory)

    def position(self, topic_partition: TopicPartition) -> int:
        return self._known_reader(topic_partition).offset

    def _known_reader(self, topic_partition: TopicPartition) -> LogReader:
        return self._readers.get(topic_partition) or self._deleted[topic_partition]

    def partitions(self) -> Sequence[TopicPartition]:
        return list(self._readers)

    def find_timestamp(self, topic_partition: TopicPartition, timestamp_ms: int) -> int | None:
        skips_damage = self._options.on_corrupt == "skip"
        passed = self._passed[topic_partition] = []
        reader = self._readers[topic_partition]
        return reader.find_start(timestamp_ms, skips_damage=skips_damage, on_damage=passed.append)

    def log_end(self, topic_partition: TopicPartition) -> int:
        return self._readers[topic_partition].log_end

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        self._readers[topic_partition].seek(offset)
        self._begun.add(topic_partition)

    def pause(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._paused.update(topic_partitions)

    def resume(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._paused.difference_update(topic_partitions)

    def lag(self, topic_partition: TopicPartition, offset: int) -> int:
        return max(self._known_reader(topic_partition).end_offset - offset, 0)

    def is_at_end(self, topic_partition: TopicPartition) -> bool:
        reader = self._readers[topic_partition]
        return reader.offset >= min(self._bound(topic_partition), reader.end_offset)

    def goals(self) -> Mapping[TopicPartition, int]:
        return {} if self._options.is_following else self._ends

    def reached_by_others(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition, as a folder has no group, or the end of one that was deleted."""
        readers = self._readers
        return {
            one: readers[one].start_offset if one in readers else self._ends[one] for one in topic_partitions
        }

    def bounds(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        readers = {partition: self._readers[partition] for partition in topic_partitions}
        return {partition: (reader.start_offset, reader.end_offset) for partition, reader in readers.items()}

    def close(self) -> None:
        self._readers.clear()

    def _bound(self, topic_partition: TopicPartition) -> int:
        """Return the offset to read up to: for a mirror that does not follow, the end at the start."""
        reader = self._readers[topic_partition]
        return reader.end_offset if self._options.is_following else self._ends[topic_partition]

    def _refresh(self) -> None:
        for topic_partition, reader in list(self._readers.items()):
            try:
                if reader.folder.stat().st_ino != self._inodes[topic_partition]:
                    raise FileNotFoundError
                reader.refresh()
            except FileNotFoundError:
                self._deleted[topic_partition] = self._readers.pop(topic_partition)
                self._unbounded.pop(topic_partition, None)
                self._passed.pop(topic_partition, None)
                self._begun.discard(topic_partition)
                self._open.forget(topic_partition)
                self._folders.invalidate()  # a remote folder that replaces it has no other inode
        if time.monotonic() - self._listed > _LIST_SECONDS:
            self._list()

    def _is_selected(self, topic: str) -> bool:
        wanted = self._options.topics
        return not is_internal_topic(topic) and (wanted is None or topic_matches(topic, wanted))

    def _no_topics_message(self, path: StoragePath) -> str:
        return f"{path}: no topic is here but those whose names begin with two underscores"

    def _check_topics(self, path: StoragePath) -> None:
        """Raise MirrorError if a name or a glob matches no topic; a mirror that follows warns of it."""
        error = selection_error(self._folders.folders, self._options.topics, is_empty=False)
        if error is None or not self._folders.folders:
            return
        if not self._options.is_following:
            raise MirrorError(f"{path}: {error}")
        _log.warning(TOPICS_AWAITED, source=str(path), missing=error)

    def _end(self, reader: LogReader) -> None:
        """Make a new reader end before the end of its log, by the options or as a subclass wants it."""
        times = TimeRange(None, self._options.times.end_ms)
        reader.bound(times, skips_damage=self._options.on_corrupt == "skip")

    def _list(self) -> None:
        self._listed = time.monotonic()
        self._folders.refresh()
        for topic_partition, folder in sorted(self._folders.folders.items()):
            # The mirror must see that a partition is gone, before a folder that replaces it is a new one.
            if topic_partition in self._readers or topic_partition in self._deleted:
                continue
            if not self._is_selected(topic_partition.topic):
                continue
            try:
                reader = self._reader(topic_partition, folder)
                self._inodes[topic_partition] = folder.stat().st_ino
            except FileNotFoundError:  # deleted since it was listed
                continue
            if reader.overlaps:
                _log.warning(
                    "segments have offsets of segments before them: each offset is read once",
                    partition=str(topic_partition),
                    segments=len(reader.overlaps),
                )
            try:
                self._end(reader)
            except KafkaFormatError as error:
                self._unbounded[topic_partition] = str(error)
            self._readers[topic_partition] = reader
            self._paused.add(topic_partition)
            self._ends[topic_partition] = reader.end_offset

    def _reader(self, topic_partition: TopicPartition, folder: StoragePath) -> LogReader:
        return LogReader(
            topic_partition,
            folder,
            self._cache,
            self._memory,
            is_committed=self._options.is_committed,
            keeps_control_batches=self._options.keeps_control_batches,
            from_segment_start=self._options.from_segment_start,
            on_gone=partial(self._note_gone, topic_partition),
        )
