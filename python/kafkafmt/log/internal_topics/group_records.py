"""Build groups out of the decoded records of `__consumer_offsets`: see `groups.py` for what they become."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias
from uuid import UUID

from kafkafmt._util.uuids import uuid_text
from kafkafmt.errors import InvalidRecordError
from kafkafmt.log.internal_topics.groups import Group, GroupMember, GroupType
from kafkafmt.schemas import RawMessage, decode_assignment, decode_subscription
from kafkafmt.types import TopicPartition

_Part: TypeAlias = Literal["metadata", "assignment", "topology", "members", "targets", "current"]

_CONSUMER_PROTOCOL = "consumer"
_STABLE_MEMBER = {"consumer": 0, "streams": 1}  # MemberState of Kafka's group coordinator
_TASKS = (("active", "active_tasks"), ("standby", "standby_tasks"), ("warmup", "warmup_tasks"))


class _Place(NamedTuple):
    """The group type and the part of a group that a record describes."""

    type: GroupType
    part: _Part


_MODERN: tuple[tuple[str, GroupType], ...] = (
    ("Consumer", "consumer"),
    ("Share", "share"),
    ("Streams", "streams"),
)
_PARTS: tuple[tuple[str, _Part], ...] = (
    ("Metadata", "metadata"),
    ("TargetAssignmentMetadata", "assignment"),
    ("MemberMetadata", "members"),
    ("TargetAssignmentMember", "targets"),
    ("CurrentMemberAssignment", "current"),
)
# By the names of the record types.
_PLACES = {
    "GroupMetadata": _Place("classic", "metadata"),
    "StreamsGroupTopology": _Place("streams", "topology"),
    **{f"{prefix}Group{suffix}": _Place(type_, part) for prefix, type_ in _MODERN for suffix, part in _PARTS},
}
# These records describe topics of groups.
_WITHOUT_GROUPS = (
    "ConsumerGroupPartitionMetadata",
    "ConsumerGroupRegularExpression",
    "ShareGroupPartitionMetadata",
    "ShareGroupStatePartitionMetadata",
)


@dataclass
class _Parts:
    """The records of a group of one type. last_offset: that of its newest record of metadata."""

    last_offset: int = -1
    metadata: Any = None
    assignment: Any = None
    topology: Any = None
    members: dict[str, Any] = field(default_factory=dict)
    targets: dict[str, Any] = field(default_factory=dict)
    current: dict[str, Any] = field(default_factory=dict)

    def add(self, part: _Part, key: Any, value: Any, offset: int) -> None:
        if part in ("members", "targets", "current"):
            getattr(self, part)[key.member_id] = value
            return
        setattr(self, part, value)
        if part == "metadata":
            self.last_offset = offset


class GroupRecords:
    """Collects the last records of groups. topic_names: the names of topics by their ids, as far as they are known."""

    def __init__(self, topic_names: Mapping[UUID, str]) -> None:
        self._names = dict(topic_names)
        self._parts: dict[tuple[str, GroupType], _Parts] = {}

    def add(self, name: str, key: Any, value: Any, offset: int) -> bool:
        """Add a record, which is no tombstone. Returns False for a kind that describes no group.

        name: the name of the kind, without `Key` and `Value`.
        """
        self._learn_names(name, value)
        place = _PLACES.get(name)
        if place is None:
            return name in _WITHOUT_GROUPS
        group_id = key.group if name == "GroupMetadata" else key.group_id
        self._parts.setdefault((group_id, place.type), _Parts()).add(place.part, key, value, offset)
        return True

    def _learn_names(self, name: str, value: Any) -> None:
        if name == "ConsumerGroupPartitionMetadata":
            self._names |= {topic.topic_id: topic.topic_name for topic in value.topics}
        elif name in ("ShareGroupPartitionMetadata", "ShareGroupStatePartitionMetadata"):
            # Early layouts lack some fields.
            for name_of_topics in ("initializing_topics", "initialized_topics", "deleting_topics"):
                topics = getattr(value, name_of_topics, ())
                self._names |= {topic.topic_id: topic.topic_name for topic in topics}

    def groups(self) -> Iterator[Group]:
        """Yield the groups. If records describe a group of two types, it is that of the newest record of metadata."""
        newest: dict[str, tuple[GroupType, _Parts]] = {}
        for (group_id, type_), parts in self._parts.items():
            if parts.metadata is None:
                continue
            if group_id not in newest or newest[group_id][1].last_offset < parts.last_offset:
                newest[group_id] = type_, parts
        for group_id, (type_, parts) in newest.items():
            if type_ == "classic":
                yield _classic_group(group_id, parts.metadata)
            else:
                yield self._modern_group(group_id, type_, parts)

    def _modern_group(self, group_id: str, type_: GroupType, parts: _Parts) -> Group:
        return Group(
            group_id,
            type_,
            _state(type_, parts),
            protocol_type=type_,
            epoch=parts.metadata.epoch,
            assignment_epoch=_assignment_epoch(parts),
            members=tuple(self._member(one, parts) for one in sorted(parts.members)),
        )

    def _member(self, member_id: str, parts: _Parts) -> GroupMember:
        metadata = parts.members[member_id]
        current, target = parts.current.get(member_id), parts.targets.get(member_id)
        classic = getattr(metadata, "classic_member_metadata", None)
        return GroupMember(
            member_id,
            getattr(metadata, "instance_id", None),
            metadata.client_id,
            metadata.client_host,
            metadata.rack_id,
            epoch=-1 if current is None else current.member_epoch,
            subscribed_topics=tuple(getattr(metadata, "subscribed_topic_names", ())),
            subscribed_regex=getattr(metadata, "subscribed_topic_regex", None) or None,
            assignment=self._partitions(getattr(current, "assigned_partitions", ())),
            target_assignment=self._partitions(getattr(target, "topic_partitions", ())),
            tasks=tuple(_tasks(current)),
            session_timeout_ms=-1 if classic is None else classic.session_timeout_ms,
            rebalance_timeout_ms=getattr(metadata, "rebalance_timeout_ms", -1),
        )

    def _partitions(self, topics: Iterable[Any]) -> tuple[TopicPartition, ...]:
        found = (
            TopicPartition(self._names.get(topic.topic_id, uuid_text(topic.topic_id)), partition)
            for topic in topics
            for partition in topic.partitions
        )
        return tuple(sorted(found))


def _classic_group(group_id: str, value: Any) -> Group:
    is_consumer = value.protocol_type == _CONSUMER_PROTOCOL
    members = (_classic_member(member, value.generation, is_consumer=is_consumer) for member in value.members)
    return Group(
        group_id,
        "classic",
        "Stable" if value.members else "Empty",
        value.protocol_type,
        value.protocol,
        value.leader,
        value.generation,
        state_timestamp=value.current_state_timestamp,
        members=tuple(sorted(members, key=lambda one: one.member_id)),
    )


def _classic_member(member: Any, generation: int, *, is_consumer: bool) -> GroupMember:
    return GroupMember(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        epoch=generation,
        subscribed_topics=_subscribed_topics(member.subscription) if is_consumer else (),
        assignment=_assigned_partitions(member.assignment) if is_consumer else (),
        session_timeout_ms=member.session_timeout,
        rebalance_timeout_ms=member.rebalance_timeout,
    )


def _subscribed_topics(subscription: bytes) -> tuple[str, ...]:
    """Return the topics of a subscription in the consumer protocol; none if it cannot be decoded.

    The members of a group choose these bytes. The coordinator does not check them.
    """
    with suppress(InvalidRecordError):
        found = decode_subscription(subscription)
        if not isinstance(found, RawMessage):
            return tuple(sorted(found.topics))
    return ()


def _assigned_partitions(assignment: bytes) -> tuple[TopicPartition, ...]:
    """Return the partitions of an assignment in the consumer protocol; none if it cannot be decoded."""
    with suppress(InvalidRecordError):
        found = decode_assignment(assignment)
        if not isinstance(found, RawMessage):
            topics = found.assigned_partitions
            return tuple(
                sorted(TopicPartition(one.topic, number) for one in topics for number in one.partitions)
            )
    return ()


def _state(type_: GroupType, parts: _Parts) -> str:
    """Return the state as the coordinator derives it from the epochs of the group and of its members."""
    if not parts.members:
        return "Empty"
    if type_ == "share":
        return "Stable"
    if type_ == "streams" and not _is_ready(parts):
        return "NotReady"
    epoch = _assignment_epoch(parts)
    if parts.metadata.epoch > epoch:
        return "Assigning"
    stable = _STABLE_MEMBER[type_]
    current = [parts.current.get(one) for one in parts.members]
    is_stable = all(one is not None and (one.state, one.member_epoch) == (stable, epoch) for one in current)
    return "Stable" if is_stable else "Reconciling"


def _is_ready(parts: _Parts) -> bool:
    return parts.topology is not None and parts.topology.epoch == parts.metadata.validated_topology_epoch


def _assignment_epoch(parts: _Parts) -> int:
    return 0 if parts.assignment is None else int(parts.assignment.assignment_epoch)


def _tasks(current: Any) -> Iterator[str]:
    for role, name in _TASKS:
        for task in getattr(current, name, ()):
            yield from (f"{role} {task.subtopology_id}_{partition}" for partition in sorted(task.partitions))
