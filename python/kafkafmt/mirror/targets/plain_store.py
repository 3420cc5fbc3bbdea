"""A log directory at a URI as a store of sealed segments: each partition is a folder with segments and their indexes.

An object store cannot append to a file, so a segment is stored whole: its indexes and leader epochs first, its `.log`
last. A partition continues at the end of its last `.log`, so the `.log` files of a partition are stored in order. Files
that a killed mirror stored without a `.log` are stored again, or are ignored by readers.

A partition without records gets an empty `.log`, as in a local folder: without it readers see no partition. It is
stored once the first records would be stored, so that other partitions need none. The first segment may replace it. The
empty `.log` never replaces the first segment: a partition whose first segment was opened gets none.

A store has no locks. A mirror that was suspended may continue after another one has taken over its partitions. So a
`.log` never replaces one of other bytes: the first batch that is not stored yet has the same offset for both mirrors.
No store decides between two writers, so the `.log` is looked up immediately before each request that publishes a file.

Mirrors of one group write one `topics.ini`, each for its topics. So a mirror reads it before each write. Another mirror
may write at the same moment, and remove what it did not read. So each reads it again some seconds after its write.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kafkafmt._util.ini import IniError
from kafkafmt._util.staging import remove_leftovers
from kafkafmt._util.uuids import uuid_text
from kafkafmt.log.broker_files.errors import BrokerFileError
from kafkafmt.log.checkpoints import LEADER_EPOCH_CHECKPOINT, LeaderEpoch, leader_epochs
from kafkafmt.log.partition_metadata import FILE_NAME as METADATA_FILE
from kafkafmt.log.partition_metadata import read_topic_id
from kafkafmt.log.producer_states import ProducerStates
from kafkafmt.log.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, Segment, is_segment_file_name, segment_file_name
from kafkafmt.log.topic_configs import FILE_NAME as TOPICS_FILE
from kafkafmt.log.topic_configs import TopicConfig, read_topic_configs, topic_configs_text
from kafkafmt.mirror.errors import MirrorError
from kafkafmt.mirror.protocols import FROM_START, PartitionError, SourceTopic
from kafkafmt.mirror.targets.missing_markers import ensure_markers
from kafkafmt.mirror.targets.positions import FILE_NAME as POSITION_FILE
from kafkafmt.mirror.targets.sealed import SegmentConflictError, SegmentStore
from kafkafmt.mirror.targets.topic_messages import recreated_message, warn_of_unknown
from kafkafmt.storage import RemotePath, is_temporary_name, read_file, side_by_side, storage_of, write_file
from kafkafmt.storage.publication import private_folder

if TYPE_CHECKING:
    from concurrent.futures import Future
    from uuid import UUID

    from kafkafmt.mirror.clusters import MirrorCluster
    from kafkafmt.mirror.options import MirrorOptions
    from kafkafmt.mirror.protocols import Source
    from kafkafmt.mirror.statistics import Statistics
    from kafkafmt.mirror.targets.spool import SealedSegment
    from kafkafmt.types import TopicPartition

# The mirror polls the cluster between commits. So a commit stores only some of the empty segments, side by side.
_EMPTY_IN_A_COMMIT = 256
# Mirrors write `topics.ini` at the same moment after a rebalance. None of them takes as long to read and write it.
_CHECK_SECONDS = 10


def spool_path(given: Path | None, target: str) -> Path:
    """Return the path of the spool of a target: in the folder that the user gave, or in a private temporary one.

    Raises OSError, also if another user has made the private folder.
    """
    name = f"kafkafmt-spool-{hashlib.sha256(target.encode()).hexdigest()[:16]}"
    if given is None:
        folder = private_folder("spool")
        remove_leftovers(folder.with_name(name))  # release 0.1.0 had the spool beside the private folder
    else:
        folder = given
        folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def open_plain_store(
    options: MirrorOptions, source: Source, cluster: MirrorCluster | None, statistics: Statistics
) -> PlainStore:
    """Open the log directory at the target's URI."""
    return PlainStore(options)


class _EmptyLog(NamedTuple):
    """The empty `.log` that a partition without a segment gets, and when."""

    due_at: float  # monotonic, in seconds
    base_offset: int


class PlainStore(SegmentStore):
    """Stores segments in a log directory of any storage."""

    def __init__(self, options: MirrorOptions) -> None:
        assert isinstance(options.target, RemotePath)
        self._path, self._names, self._settings = options.target, options.names, options.topic_settings
        self.spool = spool_path(options.sealing.spool, str(self._path))
        self._topics: dict[str, TopicConfig] = {}  # by the names here, as this mirror has written them
        self._check_topics_at: float | None = None  # monotonic; None: nothing was written since
        self._prepared: dict[str, SourceTopic] = {}
        self._topic_ids: dict[TopicPartition, UUID] = {}
        self._ends: dict[TopicPartition, int] = {}  # of the stored segments; 0 if there is none
        self._epochs: dict[TopicPartition, list[LeaderEpoch]] = {}
        self._positions: dict[TopicPartition, tuple[int, int]] = {}
        self._is_committed = options.is_committed
        self._begins_at_start = options.begins_at_start
        self._segment_age_seconds = options.sealing.interval
        self._without_segment: dict[TopicPartition, _EmptyLog] = {}

    def prepare(self, topics: Mapping[str, SourceTopic], *, again: bool) -> Mapping[str, Mapping[str, str]]:
        """Write the source's topics to `topics.ini`. Returns the configurations by the source's names."""
        if again or any(self._prepared.get(name) != topic for name, topic in topics.items()):
            known = read_topic_configs(self._path)
            changed, own, unknown = dict(known), dict[str, TopicConfig](), []
            try:
                for name, topic in topics.items():
                    target = self._names.target(name)
                    if not topic.is_known and target not in changed:
                        unknown.append(target)
                    changed[target] = own[target] = self._settings.topic_config(target, topic, changed)
                self._write_topics(known, changed)
                self._topics |= own
            except IniError:
                raise
            except ValueError as error:
                raise MirrorError(f"{self._path}: {error}") from None
            self._prepared.update(topics)
            warn_of_unknown(unknown)
        return {name: self._topics[self._names.target(name)].configs for name in topics}

    def identify(self, topic_partition: TopicPartition, topic_id: UUID | None) -> None:
        if topic_id is None:
            return
        folder = self._folder(topic_partition)
        known = read_topic_id(folder)
        if known is None:
            text = f"version: 0\ntopic_id: {uuid_text(topic_id)}\n"
            write_file(folder / METADATA_FILE, text.encode("ascii"))
        elif known != topic_id:
            # Without the end: the store has no folder to rename.
            raise PartitionError(recreated_message(known, topic_id).partition(";")[0])

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        """Return the position that was saved, or the end of the last segment."""
        self._without_segment.pop(topic_partition, None)
        folder = self._folder(topic_partition)
        names: list[str] = []
        with suppress(FileNotFoundError), storage_of(folder).entries(folder) as entries:
            names = [entry.name for entry in entries]
        for name in filter(is_temporary_name, names):  # left by a mirror that was killed
            folder.storage.delete(folder / name)
        logs = sorted(name for name in names if is_segment_file_name(name))
        end = 0
        if logs:
            end = Segment(folder / logs[-1]).find_next_offset()
        self._ends[topic_partition] = end
        if not logs:
            self._without_segment[topic_partition] = _EmptyLog(
                time.monotonic() + self._segment_age_seconds, 0
            )
        self._epochs[topic_partition] = []
        if LEADER_EPOCH_CHECKPOINT in names:
            with suppress(BrokerFileError, FileNotFoundError):
                # Later ones are of a segment that was not stored.
                self._epochs[topic_partition] = [
                    one for one in leader_epochs(folder / LEADER_EPOCH_CHECKPOINT) if one.start_offset < end
                ]
        position = self._read_position(folder) if POSITION_FILE in names else None
        if position is not None:
            self._positions[topic_partition] = position
            if position[0] == end and position[1] > end:
                return position[1]
        return FROM_START if position == (0, 0) and not end else end or None

    def producers(self, topic_partition: TopicPartition) -> ProducerStates:
        self._without_segment.pop(topic_partition, None)  # its first segment is opened
        return self._stored_states(topic_partition)

    def begin(self, topic_partition: TopicPartition, position: int) -> None:
        end = self._ends[topic_partition]
        if self._is_committed:
            ensure_markers(self._folder(topic_partition), self._stored_states(topic_partition), end, position)
        if topic_partition in self._without_segment:
            due_at = self._without_segment[topic_partition].due_at
            self._without_segment[topic_partition] = _EmptyLog(due_at, position)
        # Without the position, the next run would begin elsewhere if it is killed before a segment is stored.
        if not end and (position or not self._begins_at_start):
            self._keep(topic_partition, position)

    def put(self, segment: SealedSegment, earlier: Future[None] | None) -> None:
        folder = self._folder(segment.topic_partition)
        log = folder / segment_file_name(segment.base_offset)
        if earlier is not None:
            earlier.result()  # if it was not stored, this one must not be stored
        end = folder / segment_file_name(segment.next_offset, SNAPSHOT_SUFFIX)
        write_file(end, segment.end_snapshot)
        try:
            for suffix, path in segment.files.items():  # the .log comes last
                if suffix == LOG_SUFFIX:
                    self._store_epochs(segment, folder)
                stored = folder / segment_file_name(segment.base_offset, suffix)
                folder.storage.put_unless(path, stored, log)
        except FileExistsError:
            raise SegmentConflictError(str(log)) from None

    def add(self, segment: SealedSegment, stored: None) -> None:
        self._ends[segment.topic_partition] = segment.next_offset

    def keep_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        for topic_partition, position in positions.items():
            if position > self._ends[topic_partition]:
                self._keep(topic_partition, position)

    def complete_commit(self, *, is_last: bool, has_failed: bool = False) -> None:
        """Store the empty segments of partitions without records, and topics that another mirror has removed.

        Other segments and positions are durable already.
        """
        now = time.monotonic()
        if self._check_topics_at is not None and (is_last or now >= self._check_topics_at):
            self._check_topics_at = None
            known = read_topic_configs(self._path)
            self._write_topics(known, {**self._topics, **known})
        due = {one: log for one, log in self._without_segment.items() if is_last or now >= log.due_at}
        most = len(due) if is_last else _EMPTY_IN_A_COMMIT
        side_by_side(self._store_empty, list(islice(due.items(), most)), in_parallel=True)

    def forget(self, topic_partition: TopicPartition) -> None:
        self._without_segment.pop(topic_partition, None)
        self._positions.pop(topic_partition, None)

    def close(self) -> None:
        """Do nothing: an object store has no locks."""

    def _write_topics(self, known: Mapping[str, TopicConfig], topics: Mapping[str, TopicConfig]) -> None:
        """Write `topics.ini` if it is to have other topics than those known. Raises ValueError."""
        if topics != known:
            write_file(self._path / TOPICS_FILE, topic_configs_text(topics).encode())
            self._check_topics_at = time.monotonic() + _CHECK_SECONDS

    def _stored_states(self, topic_partition: TopicPartition) -> ProducerStates:
        """Return the states in the snapshot at the end of the last segment, which is stored with the segment."""
        end = self._ends.get(topic_partition, 0)
        found = None
        if end:
            with suppress(FileNotFoundError):
                snapshot = self._folder(topic_partition) / segment_file_name(end, SNAPSHOT_SUFFIX)
                found = ProducerStates.from_snapshot(read_file(snapshot))
        return ProducerStates() if found is None else found

    def _store_empty(self, due: tuple[TopicPartition, _EmptyLog]) -> None:
        """Store an empty `.log` and the position after it, unless another mirror has stored the `.log`."""
        topic_partition, (_, base_offset) = due
        log = self._folder(topic_partition) / segment_file_name(base_offset)
        try:
            log.storage.write_new(log, [])
            is_new = True
        except FileExistsError:
            is_new = False
        self._ends[topic_partition] = base_offset
        if is_new and topic_partition in self._positions:
            self._keep(topic_partition, self._positions[topic_partition][1])
        del self._without_segment[topic_partition]

    def _store_epochs(self, segment: SealedSegment, folder: RemotePath) -> None:
        """Store the leader epochs of the log up to the end of a segment, if it has new ones."""
        epochs = self._epochs[segment.topic_partition]
        known = epochs[-1].epoch if epochs else -1
        new = [one for one in segment.leader_epochs if one.epoch > known]
        if new:
            epochs += new
            lines = ["0", str(len(epochs)), *(f"{one.epoch} {one.start_offset}" for one in epochs)]
            write_file(
                folder / LEADER_EPOCH_CHECKPOINT, "".join(f"{line}\n" for line in lines).encode("ascii")
            )

    def _keep(self, topic_partition: TopicPartition, position: int) -> None:
        """Save a position after the end of the stored segments, as a local folder has it."""
        kept = self._ends[topic_partition], position
        if self._positions.get(topic_partition) != kept:
            write_file(self._folder(topic_partition) / POSITION_FILE, b"%d %d\n" % kept)
            self._positions[topic_partition] = kept

    def _read_position(self, folder: RemotePath) -> tuple[int, int] | None:
        with suppress(FileNotFoundError, ValueError):
            end, position = map(int, read_file(folder / POSITION_FILE).split())
            return end, position
        return None

    def _folder(self, topic_partition: TopicPartition) -> RemotePath:
        return self._path / str(self._names.target_partition(topic_partition))
