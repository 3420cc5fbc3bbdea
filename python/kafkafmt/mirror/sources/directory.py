"""A log directory as a source: each partition's log, read on as it grows."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from uuid import UUID

import structlog

from kafkafmt.log import LogDirectory
from kafkafmt.log.compaction import cleaned_topics, shows_compaction
from kafkafmt.log.directory import nested_log_directory, no_segments_message
from kafkafmt.log.following import SegmentCache
from kafkafmt.log.partition_metadata import read_topic_id
from kafkafmt.log.reader import LogReader, read_memory
from kafkafmt.log.reading import SourceDamage
from kafkafmt.log.topic_configs import TopicConfig, read_topic_configs
from kafkafmt.log.topics import is_internal_topic
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.moving import OffsetsGone, SourceRun, SourceTopic
from kafkafmt.mirror.options import MirrorOptions
from kafkafmt.serve.descriptors import most_open_segments
from kafkafmt.types import TopicPartition

_log = structlog.get_logger()

# How often what grows is looked at, and the folder for partitions that are new.
_LOOK_SECONDS = 0.2
_LIST_SECONDS = 5.0
# The configuration of a topic that nothing tells of: a target with it removes no record. A log that was compacted
# stays of that policy, and no record in it is ever old enough to be compacted away.
_KEPT = {"cleanup.policy": "delete", "retention.bytes": "-1", "retention.ms": "-1"}
_NEVER_CLEANED = {**_KEPT, "cleanup.policy": "compact", "min.compaction.lag.ms": str(2**63 - 1)}


class DirectorySource:
    """Raises FileNotFoundError or NotADirectoryError where there is no such folder, and IniError for its topics.ini;
    MirrorError for a folder without partitions, unless the mirror follows it.

    A partition whose folder goes is no longer one of `partitions`. Offsets are committed nowhere: the target knows.
    """

    def __init__(self, path: Path, options: MirrorOptions) -> None:
        self._directory = LogDirectory(path)
        self._options = options
        self._cache = SegmentCache(most_open_segments())
        self._most_open = max(most_open_segments(), 1)
        self._open: OrderedDict[TopicPartition, LogReader] = (
            OrderedDict()
        )  # whose segment is open; last read last
        self._memory = read_memory()
        self._readers: dict[TopicPartition, LogReader] = {}
        self._held: set[TopicPartition] = set()
        self._ends: dict[TopicPartition, int] = {}
        self._inodes: dict[TopicPartition, int] = {}
        self._begun: set[TopicPartition] = set()
        self._gone: list[OffsetsGone] = []
        self._safe_configs: dict[str, Mapping[str, str]] = {}
        self._listed = float("-inf")
        self._list()
        if not self._readers:
            if not options.is_following or nested_log_directory(path) is not None:
                if self._directory.folders():
                    raise MirrorError(
                        f"{path}: no topic is here but those whose names begin with two underscores"
                    )
                raise MirrorError(no_segments_message(path))
            _log.warning("there are no partitions in the folder yet", source=str(path))

    @property
    def name(self) -> str:
        return str(self._directory.path.resolve())

    def topics(self) -> Mapping[str, SourceTopic]:
        """What `topics.ini` says of them; of others the configuration is not known."""
        said = read_topic_configs(self._directory.path)
        counts: dict[str, int] = {}
        for topic, partition in self._readers:
            counts[topic] = max(counts.get(topic, 0), partition + 1)
        found = {}
        for topic, count in counts.items():
            told = said.get(topic)
            if told is None:
                found[topic] = SourceTopic(TopicConfig(count, self._safe_config(topic)), is_known=False)
            else:
                found[topic] = SourceTopic(TopicConfig(max(count, told.partitions or 0), told.configs))
        return found

    def _safe_config(self, topic: str) -> Mapping[str, str]:
        known = self._safe_configs.get(topic)
        if known is None:
            folders = [reader.folder for one, reader in self._readers.items() if one.topic == topic]
            is_compacted = topic in cleaned_topics(self._directory.path) or shows_compaction(folders)
            known = self._safe_configs[topic] = _NEVER_CLEANED if is_compacted else _KEPT
        return known

    def _keep_open(self, topic_partition: TopicPartition, reader: LogReader) -> None:
        """Have only so many readers keep the segment open that they read: there may be more partitions than files."""
        self._open[topic_partition] = reader
        self._open.move_to_end(topic_partition)
        while len(self._open) > self._most_open:
            _, oldest = self._open.popitem(last=False)
            oldest.rest()

    def topic_id(self, topic_partition: TopicPartition) -> UUID | None:
        return read_topic_id(self._readers[topic_partition].folder)

    def recreated(self) -> Iterable[TopicPartition]:
        """A folder that took the place of another is a partition that goes, and one that comes."""
        return ()

    def poll(self, timeout: float) -> Iterator[SourceRun | SourceDamage]:
        """A run of each partition that has one; where none has, another look is taken at the end of the timeout."""
        found = False
        for topic_partition, reader in list(self._readers.items()):
            if topic_partition in self._held:
                continue
            read = reader.read(self._bound(topic_partition))
            self._keep_open(topic_partition, reader)
            if read is not None:
                found = True
                yield read if isinstance(read, SourceDamage) else SourceRun(topic_partition, read)
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
        """What all readers read into; a batch may be larger."""
        return len(self._memory)

    def position(self, topic_partition: TopicPartition) -> int:
        return self._readers[topic_partition].offset

    def learn_positions(self) -> None:
        """Readers know theirs."""

    def partitions(self) -> Sequence[TopicPartition]:
        return list(self._readers)

    def log_end(self, topic_partition: TopicPartition) -> int:
        return self._readers[topic_partition].log_end

    def seek(self, topic_partition: TopicPartition, offset: int) -> None:
        self._readers[topic_partition].seek(offset)
        self._begun.add(topic_partition)

    def hold(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._held.update(topic_partitions)

    def go_on(self, topic_partitions: Iterable[TopicPartition]) -> None:
        self._held.difference_update(topic_partitions)

    def lag(self, topic_partition: TopicPartition, offset: int) -> int:
        return max(self._readers[topic_partition].end_offset - offset, 0)

    def is_at_end(self, topic_partition: TopicPartition) -> bool:
        reader = self._readers[topic_partition]
        return reader.offset >= min(self._bound(topic_partition), reader.end_offset)

    def goals(self) -> Mapping[TopicPartition, int]:
        return {} if self._options.is_following else self._ends

    def reached_by_others(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """A folder has no group: a partition that was not begun is at its start. One that is deleted has no more."""
        readers = self._readers
        return {
            one: readers[one].start_offset if one in readers else self._ends[one] for one in topic_partitions
        }

    patience = 0.0

    def committed(self, topic_partition: TopicPartition) -> int | None:
        return None

    def bounds(self, topic_partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        readers = {partition: self._readers[partition] for partition in topic_partitions}
        return {partition: (reader.start_offset, reader.end_offset) for partition, reader in readers.items()}

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Nothing: what a folder's mirror has done its target knows."""

    def close(self) -> None:
        self._readers.clear()

    def _bound(self, topic_partition: TopicPartition) -> int:
        """Where a mirror that does not follow ends."""
        reader = self._readers[topic_partition]
        return reader.end_offset if self._options.is_following else self._ends[topic_partition]

    def _refresh(self) -> None:
        for topic_partition, reader in list(self._readers.items()):
            try:
                if reader.folder.stat().st_ino != self._inodes[topic_partition]:
                    raise FileNotFoundError
                reader.refresh()
            except FileNotFoundError:
                del self._readers[topic_partition]
                self._begun.discard(topic_partition)
                self._open.pop(topic_partition, None)
        if time.monotonic() - self._listed > _LIST_SECONDS:
            self._list()

    def _list(self) -> None:
        self._listed = time.monotonic()
        for topic_partition, folder in sorted(self._directory.folders().items()):
            if topic_partition in self._readers or is_internal_topic(topic_partition.topic):
                continue
            reader = LogReader(
                topic_partition,
                folder,
                self._cache,
                self._memory,
                is_committed=self._options.is_committed,
                keeps_control_batches=self._options.keeps_control_batches,
                on_gone=partial(self._note_gone, topic_partition),
            )
            if reader.overlaps:
                _log.warning(
                    "segments have offsets of segments before them: each offset is mirrored once",
                    partition=str(topic_partition),
                    segments=len(reader.overlaps),
                )
            self._readers[topic_partition] = reader
            self._inodes[topic_partition] = folder.stat().st_ino
            self._held.add(topic_partition)
            self._ends[topic_partition] = reader.end_offset
