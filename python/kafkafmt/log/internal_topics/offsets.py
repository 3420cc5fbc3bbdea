"""Read the state of groups from `__consumer_offsets`, as it is or as it was at an offset or a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from kafkafmt._util.uuids import uuid_text
from kafkafmt.columns.fields import Field, arrow_table
from kafkafmt.errors import KafkaFormatError
from kafkafmt.log.internal_topics.group_records import GroupRecords
from kafkafmt.log.internal_topics.groups import CommittedOffset, Group
from kafkafmt.log.internal_topics.latest import (
    DamageHandler,
    end_offset_at,
    partition_of_log,
    raise_damage,
    read_latest,
)
from kafkafmt.log.internal_topics.sources import LogSources, Sources
from kafkafmt.schemas import RawMessage, decode_group_record
from kafkafmt.types import TopicPartition

if TYPE_CHECKING:
    from datetime import datetime

    import pyarrow as pa

    from kafkafmt.log.partition_log import PartitionLog
    from kafkafmt.types import LastRecord

CONSUMER_OFFSETS = "__consumer_offsets"

OFFSET_FIELDS = (
    Field("group_id", "string"),
    Field("group_type", "string"),
    Field("state", "string"),
    Field("topic", "string"),
    Field("partition", "int32"),
    Field("committed_offset", "int64"),
    Field("log_end_offset", "int64"),
    Field("lag", "int64"),
    Field("leader_epoch", "int32"),
    Field("metadata", "string"),
    Field("commit_timestamp_ms", "int64"),
    Field("expire_timestamp_ms", "int64"),
    Field("topic_id", "string"),
    Field("pending_producer_id", "int64"),
    Field("member_id", "string"),
    Field("instance_id", "string"),
    Field("client_id", "string"),
    Field("client_host", "string"),
)
MEMBER_FIELDS = (
    Field("group_id", "string"),
    Field("group_type", "string"),
    Field("state", "string"),
    Field("protocol_type", "string"),
    Field("protocol", "string"),
    Field("group_epoch", "int32"),
    Field("assignment_epoch", "int32"),
    Field("state_timestamp_ms", "int64"),
    Field("member_id", "string"),
    Field("instance_id", "string"),
    Field("member_epoch", "int32"),
    Field("client_id", "string"),
    Field("client_host", "string"),
    Field("rack_id", "string"),
    Field("subscribed_topics", "list<string>"),
    Field("subscribed_regex", "string"),
    Field("assignment", "list<string>"),
    Field("target_assignment", "list<string>"),
    Field("tasks", "list<string>"),
)


class UnknownRecord(NamedTuple):
    """A record of a kind or a version that this release does not know, or that cannot be decoded.

    reason: what was expected, and what was found.
    """

    topic_partition: TopicPartition
    offset: int
    key: bytes
    value: bytes | None
    reason: str


@dataclass(frozen=True)
class ConsumerOffsets:
    """The groups of one or all partitions of `__consumer_offsets`, and their offsets.

    groups: by id, sorted. A group of which only offsets were written is there, too.
    offsets: the committed offsets, by group, topic and partition.
    pending: the offsets in open transactions, in the same order. They replace the others if a transaction commits.
    unknown: the records that could not be decoded.
    end_offsets: the offset before which each partition was read.
    newest_timestamp: the highest timestamp that was read, in milliseconds; -1 without records.
    notes: a line for each partition that was found in several log directories.
    """

    groups: Mapping[str, Group] = field(default_factory=dict)
    offsets: tuple[CommittedOffset, ...] = ()
    pending: tuple[CommittedOffset, ...] = ()
    unknown: tuple[UnknownRecord, ...] = ()
    end_offsets: Mapping[int, int] = field(default_factory=dict)
    newest_timestamp: int = -1
    notes: tuple[str, ...] = ()

    def to_arrow(self) -> pa.Table:
        """Return the rows of `offset_rows` as a table. Raises ImportError without pyarrow."""
        return arrow_table(OFFSET_FIELDS, self.offset_rows())

    def members_to_arrow(self) -> pa.Table:
        """Return the rows of `member_rows` as a table. Raises ImportError without pyarrow."""
        return arrow_table(MEMBER_FIELDS, self.member_rows())

    def topic_partitions(self) -> set[TopicPartition]:
        """Return the partitions that have an offset or a member."""
        committed = {TopicPartition(one.topic, one.partition) for one in self.offsets + self.pending}
        assigned = (one.assignment for group in self.groups.values() for one in group.members)
        return committed.union(*assigned)

    def offset_rows(
        self, log_end_offsets: Mapping[TopicPartition, int] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield a row of `OFFSET_FIELDS` for each offset, and for each assigned partition without an offset.

        A pending offset is a row of its own, with its producer id. A group without both is one row, too.

        log_end_offsets: the end offsets of logs, from which the lags of committed offsets follow. Others are None.
        """
        ends = log_end_offsets or {}
        of_group: dict[str, list[CommittedOffset]] = defaultdict(list)
        for one in self.offsets + self.pending:
            of_group[one.group_id].append(one)
        for group in self.groups.values():
            owners = group.owners()
            found = of_group.get(group.group_id, [])
            committed = {TopicPartition(one.topic, one.partition) for one in found}
            rows = [_offset_row(group, TopicPartition(one.topic, one.partition), one) for one in found]
            rows += [_offset_row(group, one, None) for one in owners if one not in committed]
            rows = rows or [_offset_row(group, None, None)]
            for row in sorted(rows, key=_row_order):
                where = TopicPartition(row["topic"], row["partition"])
                end, offset, of_partition = ends.get(where), row["committed_offset"], owners.get(where, ())
                row["log_end_offset"] = end
                if end is not None and offset is not None and row["pending_producer_id"] is None:
                    row["lag"] = max(end - offset, 0)
                if len(of_partition) == 1:
                    for name in ("member_id", "instance_id", "client_id", "client_host"):
                        row[name] = getattr(of_partition[0], name)
                yield row

    def member_rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row of `MEMBER_FIELDS` for each member, and for each group without members."""
        for group in self.groups.values():
            of_group = {
                "group_id": group.group_id,
                "group_type": group.type,
                "state": group.state,
                "protocol_type": group.protocol_type,
                "protocol": group.protocol,
                "group_epoch": _known(group.epoch),
                "assignment_epoch": group.assignment_epoch,
                "state_timestamp_ms": _known(group.state_timestamp),
            }
            if not group.members:
                yield dict.fromkeys((one.name for one in MEMBER_FIELDS), None) | of_group
            for member in group.members:
                target = member.target_assignment
                yield of_group | {
                    "member_id": member.member_id,
                    "instance_id": member.instance_id,
                    "member_epoch": _known(member.epoch),
                    "client_id": member.client_id,
                    "client_host": member.client_host,
                    "rack_id": member.rack_id,
                    "subscribed_topics": list(member.subscribed_topics),
                    "subscribed_regex": member.subscribed_regex,
                    "assignment": list(map(str, member.assignment)),
                    "target_assignment": None if target is None else list(map(str, target)),
                    "tasks": list(member.tasks),
                }


def consumer_offsets(
    log: Sources | LogSources,
    *,
    end_offset: int | None = None,
    timestamp: int | datetime | None = None,
    on_damage: DamageHandler = raise_damage,
) -> ConsumerOffsets:
    """Read the groups and their committed offsets from `__consumer_offsets`.

    Offsets in a transaction count if the transaction was committed (KIP-447). Compaction removes records that later
    ones replace. So an earlier state lacks the keys that were written again since.

    Args:
        log: the log of one partition of `__consumer_offsets`; or a log directory, or several, whose partitions of this
            topic are read together. Each can be given as a path or URI.
        end_offset: return the state before this offset. Only for one partition.
        timestamp: return the state at this time, in milliseconds or as an aware datetime: records up to it count.
        on_damage: called with each damaged range, which is then skipped.

    Raises:
        CorruptRecordError: for damage, with partition, offset, file and position, unless `on_damage` is given.
        FileNotFoundError: there is no such folder, or it has no partition of the topic.
        ValueError: for both bounds together, for an offset with several partitions, and for a log of another topic.
    """
    if end_offset is not None and timestamp is not None:
        raise ValueError("end_offset and timestamp: expected one of them")
    sources = log if isinstance(log, LogSources) else LogSources(log, on_damage=on_damage)
    replicas = sources.internal_logs(CONSUMER_OFFSETS)
    if end_offset is not None and len(replicas) > 1:
        raise ValueError(f"end_offset: expected one partition of {CONSUMER_OFFSETS}, found {len(replicas)}")
    state = _State(GroupRecords(sources.topic_names()))
    skips_damage = on_damage is not raise_damage
    for one in replicas:
        bound = end_offset
        if timestamp is not None:
            bound = end_offset_at(one.chosen, timestamp, skips_damage=skips_damage)
        state.read(one.chosen, bound, on_damage)
    return state.result(tuple(one.in_words() for one in replicas if one.others))


class _State:
    """The records of all partitions."""

    def __init__(self, records: GroupRecords) -> None:
        self._records = records
        self._offsets: dict[tuple[str, str, int], CommittedOffset] = {}
        self._pending: list[CommittedOffset] = []
        self._unknown: list[UnknownRecord] = []
        self._end_offsets: dict[int, int] = {}
        self._newest = -1

    def read(self, log: PartitionLog, end_offset: int | None, on_damage: DamageHandler) -> None:
        found = read_latest(log, end_offset, on_damage=on_damage)
        where = partition_of_log(log)
        self._end_offsets[where.partition] = found.end_offset
        self._newest = max(self._newest, found.newest_timestamp)
        deleted = {}
        for record in found.records:
            if record.value is None:
                deleted[record.key] = record.offset
            else:
                self._add(where, record)
        for producer_id, records in found.pending.items():
            for record in records:
                # The tombstone of an offset also removes those that are pending.
                if record.value is not None and deleted.get(record.key, -1) < record.offset:
                    self._add(where, record, producer_id)

    def _add(self, where: TopicPartition, record: LastRecord, producer_id: int | None = None) -> None:
        assert record.value is not None
        try:
            decoded = decode_group_record(record.key, record.value)
        except KafkaFormatError as error:
            self._add_unknown(where, record, str(error))
            return
        key, value, name = decoded.key, decoded.value, decoded.type_name
        if name is None or isinstance(value, RawMessage):
            found = f"type {decoded.api_key}, version {decoded.version}"
            self._add_unknown(where, record, f"expected a known type and version, found {found}")
        elif name in ("OffsetCommit", "LegacyOffsetCommit"):
            self._add_offset(key, value, producer_id)
        elif not self._records.add(name, key, value, record.offset):
            self._add_unknown(where, record, f"expected a record of a group, found {name}")

    def _add_unknown(self, where: TopicPartition, record: LastRecord, reason: str) -> None:
        self._unknown.append(UnknownRecord(where, record.offset, record.key, record.value, reason))

    def _add_offset(self, key: Any, value: Any, producer_id: int | None) -> None:
        topic_id = getattr(value, "topic_id", None)
        found = CommittedOffset(
            key.group,
            key.topic,
            key.partition,
            value.offset,
            getattr(value, "leader_epoch", -1),
            value.metadata,
            value.commit_timestamp,
            getattr(value, "expire_timestamp", -1),
            topic_id if topic_id and topic_id.int else None,
            producer_id,
        )
        if producer_id is None:
            self._offsets[key.group, key.topic, key.partition] = found
        else:
            self._pending.append(found)

    def result(self, notes: tuple[str, ...]) -> ConsumerOffsets:
        offsets = sorted(self._offsets.values(), key=_offset_order)
        pending = sorted(self._pending, key=_offset_order)
        # The coordinator makes a classic group of offsets that have no group.
        groups = {one.group_id: Group(one.group_id, "classic", "Empty", "") for one in offsets + pending}
        groups |= {group.group_id: group for group in self._records.groups()}
        return ConsumerOffsets(
            {group_id: groups[group_id] for group_id in sorted(groups)},
            tuple(offsets),
            tuple(pending),
            tuple(self._unknown),
            self._end_offsets,
            self._newest,
            notes,
        )


def _offset_order(one: CommittedOffset) -> tuple[str, str, int, int]:
    return one.group_id, one.topic, one.partition, -1 if one.producer_id is None else one.producer_id


def _row_order(row: Mapping[str, Any]) -> tuple[str, int, int]:
    return row["topic"] or "", row["partition"] or 0, _number(row["pending_producer_id"])


def _number(value: int | None) -> int:
    return -1 if value is None else value


def _known(value: int) -> int | None:
    """Return a number; None for -1, which stands for none."""
    return None if value == -1 else value


def _offset_row(
    group: Group, where: TopicPartition | None, committed: CommittedOffset | None
) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys((one.name for one in OFFSET_FIELDS), None)
    row |= {"group_id": group.group_id, "group_type": group.type, "state": group.state}
    if where is not None:
        row |= {"topic": where.topic, "partition": where.partition}
    if committed is not None:
        row |= {
            "committed_offset": committed.offset,
            "leader_epoch": _known(committed.leader_epoch),
            "metadata": committed.metadata,
            "commit_timestamp_ms": _known(committed.commit_timestamp),
            "expire_timestamp_ms": _known(committed.expire_timestamp),
            "topic_id": None if committed.topic_id is None else uuid_text(committed.topic_id),
            "pending_producer_id": committed.producer_id,
        }
    return row
