"""A backup as a store of sealed segments. A generation is written at an interval, and at the end.

A generation describes the selected topics as the source has them when it is written:

- A topic that was deleted is left out; one that was created again begins anew.
- A topic that the user may no longer see is an error.
- Segments below the log start offset of the source are left out.
- A partition whose log was truncated below what is backed up begins anew.

Earlier generations keep what they name until they are pruned. Topics that are not selected stay as they are, and so do
the offsets of groups in them.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

import kafka.errors as kafka_errors
import structlog

from kafkafmt.log.producer_states import OpenProducer, ProducerStates
from kafkafmt.log.topic_configs import is_topic_name
from kafkafmt.mirror.coordinators import ask_coordinator
from kafkafmt.mirror.protocols import SourceTopic
from kafkafmt.mirror.refusals import RefusedError
from kafkafmt.mirror.targets.sealed import SegmentStore
from kafkafmt.storage.backups.errors import BackupError
from kafkafmt.storage.backups.manifest import (
    SEGMENTS_FOLDER,
    BackedUpPartition,
    BackedUpSegment,
    BackedUpTopic,
    GroupOffset,
    Manifest,
    OpenTransaction,
)
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from kafkafmt.backup.groups import GroupOffsets
    from kafkafmt.backup.objects import SegmentWriter
    from kafkafmt.backup.repository import Repository
    from kafkafmt.mirror.clusters import MirrorCluster
    from kafkafmt.mirror.targets.spool import SealedSegment

_log = structlog.get_logger()


@dataclass
class _Partition:
    """What is backed up of a partition."""

    start_offset: int = 0
    next_offset: int = 0
    segments: list[BackedUpSegment] = field(default_factory=list)
    open: tuple[OpenProducer, ...] = ()


@dataclass
class _Topic:
    topic_id: UUID | None
    count: int = 0
    configs: Mapping[str, str] = field(default_factory=dict)
    partitions: dict[int, _Partition] = field(default_factory=dict)


@dataclass(frozen=True)
class BackupSource:
    """The source of a backup. matches: whether a topic of that name is selected. read_groups: reads the groups now."""

    cluster: MirrorCluster
    matches: Callable[[str], bool]
    read_groups: Callable[[], GroupOffsets]


class BackupStore(SegmentStore):
    """Stores segments in a backup, and writes its generations.

    groups: as of before the ends of the logs were read, so that no committed offset is after what is backed up.
    follows: whether the backup continues after these ends. Then groups are read again at each `generation_age`.
    """

    def __init__(
        self,
        repository: Repository,
        source: BackupSource,
        writer: SegmentWriter,
        groups: GroupOffsets,
        *,
        spool: Path,
        generation_age: float,
        follows: bool,
    ) -> None:
        self.spool = spool
        self._repository, self._source, self._writer = repository, source, writer
        self._groups = groups
        self._generation_age, self._follows = generation_age, follows
        self._run = secrets.token_hex(16)
        self._due = time.monotonic() + generation_age
        self._is_late = False  # the cluster did not answer at the due generation, whose segments are stored
        self._topics: dict[str, _Topic] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._configs: dict[str, Mapping[str, str]] = {}  # of topics, as they were last known
        self._has_new = False  # segments that no generation has
        self._lost_tombstones: set[str] = set()  # topics that may have lost some since the last generation
        self.generations: list[str] = []
        names = repository.generations()
        self._parent = repository.read(names[-1]) if names else None
        if self._parent is not None:
            self._read_parent(self._parent)
        self._missing_once = self._unknown(self._missing({*source.cluster.topic_names()}))

    @property
    def parent(self) -> Manifest | None:
        """The last generation."""
        return self._parent

    def prepare(self, topics: Mapping[str, SourceTopic], *, again: bool) -> Mapping[str, Mapping[str, str]]:
        names = {*topics}
        for name, topic in topics.items():
            # A broker may return any name. Segments of a topic with a slash in its name would be elsewhere.
            if not is_topic_name(name):
                raise BackupError(f"expected the name of a topic, found {name!r}")
            if topic.is_known:
                self._configs[name] = topic.config.configs
            elif name not in self._configs:  # a restore would take it for a topic without configuration
                raise BackupError(
                    f"{self._source.cluster.address}: the configuration of topic {name} cannot be read: expected the "
                    "right DescribeConfigs, as a backup has the configuration of topics"
                )
        partitions = self._source.cluster.partitions(names)
        self._ends |= {
            one: end for one, (_, end) in self._source.cluster.bounds(partitions, is_committed=False).items()
        }
        self._lost_tombstones = self._topics_with_lost_tombstones(names)
        return {name: self._configs[name] for name in topics}

    def _topics_with_lost_tombstones(self, names: set[str]) -> set[str]:
        """Return the known topics whose tombstones may be gone that were written after the last generation.

        Compaction removes a tombstone `delete.retention.ms` after it has first met it.
        """
        if self._parent is None:
            return set()
        read_ms = self._parent.groups_at_ms or self._parent.created_ms  # groups are read before the logs
        age_ms = time.time_ns() // 1_000_000 - read_ms
        counts = self._source.cluster.partition_counts(names & self._topics.keys())
        found = self._source.cluster.describe_topics(counts, own=False)
        return {
            name
            for name, topic in found.items()
            if "compact" in topic.configs.get("cleanup.policy", "")
            and age_ms > int(topic.configs.get("delete.retention.ms", age_ms))
        }

    def identify(self, topic_partition: TopicPartition, topic_id: UUID | None) -> None:
        name, _ = topic_partition
        known = self._topics.get(name)
        if known is not None and _differ(known.topic_id, topic_id):
            _log.warning(
                "a topic was created again, and is backed up from its start; earlier generations keep the old one",
                topic=name,
                topic_id=str(topic_id),
                earlier_topic_id=str(known.topic_id),
            )
            known = None
        if known is None:
            self._topics[name] = _Topic(topic_id, configs=self._configs[name])
        elif known.topic_id is None:
            known.topic_id = topic_id

    def resume_offset(self, topic_partition: TopicPartition) -> int | None:
        """Return where the last generation ends; None for a log that was truncated below it."""
        topic = self._topics[topic_partition.topic]
        known = topic.partitions.get(topic_partition.partition)
        if known is None:
            return None
        end = self._ends.get(topic_partition)
        if end is not None and known.next_offset > end:
            _log.warning(
                "a log was truncated, and is backed up from its start; earlier generations keep what it was",
                partition=str(topic_partition),
                log_end=end,
                backed_up_to=known.next_offset,
            )
            del topic.partitions[topic_partition.partition]
            return None
        if topic_partition.topic in self._lost_tombstones and end is not None and end > known.next_offset:
            self._lost_tombstones.remove(topic_partition.topic)
            _log.warning(
                "a compacted topic was last backed up longer ago than its delete.retention.ms: tombstones may be gone "
                "since, and the backup then keeps the keys that they deleted; back it up into a new target",
                topic=topic_partition.topic,
            )
        return known.next_offset

    def producers(self, topic_partition: TopicPartition) -> ProducerStates:
        """Return the open transactions. Other states are not in a backup: no reader of a log needs them."""
        return ProducerStates.of_open(self._partition(topic_partition).open)

    def begin(self, topic_partition: TopicPartition, position: int) -> None:
        self._partition(topic_partition).next_offset = position

    def put(self, segment: SealedSegment, earlier: Future[BackedUpSegment] | None) -> BackedUpSegment:
        topic, partition = segment.topic_partition
        name = f"{segment.base_offset:020}-{secrets.token_hex(16)}"
        folder = f"{SEGMENTS_FOLDER}/{topic}/{segment.topic_id or 'none'}/{partition}"
        return self._writer.write(segment, f"{folder}/{name}")

    def add(self, segment: SealedSegment, stored: BackedUpSegment) -> None:
        topic = self._topics.get(segment.topic_partition.topic)
        if topic is None or _differ(topic.topic_id, segment.topic_id):  # deleted, or created again meanwhile
            return
        known = self._partition(segment.topic_partition)
        known.segments.append(stored)
        self._has_new = True
        known.open = segment.open_transactions
        known.next_offset = max(known.next_offset, segment.next_offset)

    def keep_positions(self, positions: Mapping[TopicPartition, int]) -> None:
        for topic_partition, position in positions.items():
            if topic_partition.topic not in self._topics:  # deleted meanwhile
                continue
            known = self._partition(topic_partition)
            known.next_offset = max(known.next_offset, position)

    def wants_open_segments(self) -> bool:
        return not self._is_late and time.monotonic() >= self._due

    def complete_commit(self, *, is_last: bool, has_failed: bool = False) -> None:
        if has_failed and not self._has_new:
            return  # a generation would seem to be a backup of the topics
        if is_last:
            try:
                ask_coordinator(lambda: self._write(is_last=True))
            except kafka_errors.RetriableError as error:
                raise BackupError(f"the last generation was not written: {error}") from None
        elif self._is_late or self.wants_open_segments():
            try:
                self._write(is_last=False)
                if self._follows:
                    self._groups = self._source.read_groups()
            except kafka_errors.RetriableError as error:
                _log.warning(
                    "the cluster did not answer at a generation, and is asked again at the next commit",
                    error=str(error),
                )
                self._is_late = True
                return
            self._is_late = False
            self._due = time.monotonic() + self._generation_age

    def close(self) -> None:
        """Do nothing: a backup has no locks."""

    def _partition(self, topic_partition: TopicPartition) -> _Partition:
        return self._topics[topic_partition.topic].partitions.setdefault(
            topic_partition.partition, _Partition()
        )

    def _read_parent(self, parent: Manifest) -> None:
        opened: dict[tuple[str, int], list[OpenProducer]] = {}
        for one in parent.open_transactions:
            opened.setdefault((one.topic, one.partition), []).append(
                OpenProducer(one.producer_id, one.producer_epoch, one.first_offset)
            )
        for topic in parent.topics:
            self._configs[topic.name] = topic.configs
            self._topics[topic.name] = _Topic(
                None if topic.topic_id is None else UUID(topic.topic_id),
                topic.partition_count,
                topic.configs,
                {
                    one.partition: _Partition(
                        one.start_offset,
                        one.next_offset,
                        list(one.segments),
                        tuple(opened.get((topic.name, one.partition), ())),
                    )
                    for one in topic.partitions
                },
            )

    def _write(self, *, is_last: bool) -> None:
        """Write a generation, if it is the last one of a run or has something new."""
        self._refresh()
        number = 1 if self._parent is None else self._parent.number + 1
        manifest = Manifest(
            number=number,
            name=f"{number:020}-{secrets.token_hex(4)}",
            parent=None if self._parent is None else self._parent.name,
            source=self._source.cluster.id,
            created_ms=time.time_ns() // 1_000_000,
            writer=self._run,
            topics=tuple(self._described()),
            groups=self._described_groups(),
            groups_at_ms=self._groups.at_ms,
            open_transactions=tuple(self._open_transactions()),
        )
        if not is_last and self._parent is not None and _content(manifest) == _content(self._parent):
            return
        self._warn_of_groups(manifest)
        self._repository.write(manifest)
        self._has_new = False
        self._parent = manifest
        self.generations.append(manifest.name)
        _log.info("a generation was written", generation=manifest.name)

    def _refresh(self) -> None:
        """Take over partition counts, configurations and log start offsets, as the source has them now."""
        cluster = self._source.cluster
        names = set(filter(self._source.matches, cluster.topic_names()))
        ids, counts = cluster.topic_ids(names), cluster.partition_counts(names)
        self._configs |= {name: found.configs for name, found in cluster.describe_topics(counts).items()}
        bounds = cluster.bounds(cluster.partitions(names), is_committed=False)
        # A broker that has just started may not know all topics. So a topic is gone if two listings do not have it, and
        # no broker knows it.
        missing = self._missing(names)
        for name in sorted(self._unknown(missing & self._missing_once)):
            _log.warning("a topic was deleted; earlier generations keep it", topic=name)
            del self._topics[name]
        self._missing_once = missing
        for name, count in counts.items():
            if name not in self._configs:
                continue  # created after the backup began, and its configuration cannot be read
            topic = self._topics.setdefault(name, _Topic(ids.get(name)))
            if _differ(topic.topic_id, ids.get(name)):
                continue  # created again meanwhile: this generation has the earlier topic
            topic.count, topic.configs = count, self._configs[name]
            for one, (start, _) in bounds.items():
                known = topic.partitions.get(one.partition)
                if one.topic == name and known is not None:
                    known.start_offset = max(known.start_offset, min(start, known.next_offset))
                    known.segments = [found for found in known.segments if found.next_offset > start]

    def _missing(self, names: set[str]) -> set[str]:
        """Return the selected topics of the last generation that are not among the names."""
        return {one for one in self._topics if self._source.matches(one) and one not in names}

    def _unknown(self, missing: Iterable[str]) -> set[str]:
        """Return those of the missing topics that no broker knows. Raises BackupError if the user may not see one."""
        cluster = self._source.cluster
        unknown = {name for name in missing if not cluster.has_topic(name)}
        try:
            cluster.ensure_describable(unknown)  # brokers list no topic without this right
        except RefusedError as error:
            raise BackupError(f"{error}, which the backup has, or --topics that selects others") from None
        return unknown

    def _described(self) -> list[BackedUpTopic]:
        return [
            BackedUpTopic(
                name,
                None if topic.topic_id is None else str(topic.topic_id),
                max([topic.count, *(number + 1 for number in topic.partitions)]),
                dict(topic.configs),
                tuple(
                    BackedUpPartition(number, one.start_offset, one.next_offset, tuple(one.segments))
                    for number, one in sorted(topic.partitions.items())
                ),
            )
            for name, topic in sorted(self._topics.items())
        ]

    def _described_groups(self) -> dict[str, tuple[GroupOffset, ...]]:
        """Return the offsets of groups, and those of the last generation in topics that are not selected."""
        found = dict(self._groups.by_group)
        earlier: Mapping[str, tuple[GroupOffset, ...]] = {} if self._parent is None else self._parent.groups
        for group, offsets in earlier.items():
            kept = [one for one in offsets if not self._source.matches(one.topic)]
            if kept:
                all_offsets = (*found.get(group, ()), *kept)
                found[group] = tuple(sorted(all_offsets, key=lambda one: (one.topic, one.partition)))
        return found

    def _open_transactions(self) -> list[OpenTransaction]:
        return [
            OpenTransaction(name, number, one.producer_id, one.producer_epoch, one.first_offset)
            for name, topic in sorted(self._topics.items())
            for number, partition in sorted(topic.partitions.items())
            for one in partition.open
        ]

    def _warn_of_groups(self, manifest: Manifest) -> None:
        """Warn if committed offsets are after the end of what is backed up. A restore moves them to that end."""
        ends = {
            (topic.name, one.partition): one.next_offset
            for topic in manifest.topics
            for one in topic.partitions
        }
        after = sum(
            one.offset > ends.get((one.topic, one.partition), one.offset)
            for offsets in manifest.groups.values()
            for one in offsets
        )
        if after:
            _log.warning("committed offsets are after what is backed up", offsets=after)


def _differ(one: UUID | None, other: UUID | None) -> bool:
    """Whether two topic ids are known, and of different topics."""
    return None not in (one, other) and one != other


def _content(manifest: Manifest) -> Manifest:
    """Return a manifest without what differs from one generation to the next."""
    return replace(manifest, number=0, name="", parent=None, created_ms=0, writer="", groups_at_ms=0)
