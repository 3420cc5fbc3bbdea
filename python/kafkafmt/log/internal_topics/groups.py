"""Groups, their members and their committed offsets, as records of `__consumer_offsets` describe them.

The group coordinator writes records of these kinds (Kafka's `group-coordinator` schemas):

| group | members | records |
|---|---|---|
| classic (KIP-62) | all in one record, with the assignments of the leader | GroupMetadata |
| consumer (KIP-848), share (KIP-932), streams (KIP-1071) | records for each member | `<Kind>Group...` |

States are derived as the coordinator does after it has loaded its partition. So a classic group with members is Stable,
though it may have been rebalancing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias
from uuid import UUID

from kafkafmt.types import TopicPartition

GroupType: TypeAlias = Literal["classic", "consumer", "share", "streams"]


@dataclass(frozen=True)
class CommittedOffset:
    """The offset that a group committed for a partition.

    leader_epoch: that of the last consumed record; -1 if it is unknown.
    commit_timestamp, expire_timestamp: in milliseconds. expire_timestamp: -1 if the retention of the broker decides.
    topic_id: None if the coordinator did not write it, as before Kafka 4.1.
    producer_id: the producer whose open transaction has the offset (KIP-447). None: the offset is committed.
    """

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_timestamp: int = -1
    expire_timestamp: int = -1
    topic_id: UUID | None = None
    producer_id: int | None = None

    @property
    def is_pending(self) -> bool:
        """Whether the offset is part of a transaction that is open."""
        return self.producer_id is not None


@dataclass(frozen=True)
class GroupMember:
    """A member of a group.

    instance_id: of a static member; None for others.
    epoch: the member epoch; the generation in a classic group.
    subscribed_topics, subscribed_regex: what the member subscribes to. They are empty if the group does not use the
        consumer protocol.
    assignment: the partitions that the member owns. If the name of a topic is unknown, its topic id is the topic.
    target_assignment: the partitions that the coordinator wants it to own; None in a classic group.
    tasks: the tasks of a member of a streams group: `active`, `standby` or `warmup`, and `<subtopology>_<partition>`.
    session_timeout_ms, rebalance_timeout_ms: -1 if the record does not contain it.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rack_id: str | None = None
    epoch: int = -1
    subscribed_topics: tuple[str, ...] = ()
    subscribed_regex: str | None = None
    assignment: tuple[TopicPartition, ...] = ()
    target_assignment: tuple[TopicPartition, ...] | None = None
    tasks: tuple[str, ...] = ()
    session_timeout_ms: int = -1
    rebalance_timeout_ms: int = -1


@dataclass(frozen=True)
class Group:
    """A group.

    state: as Kafka's tools print it: Empty, Stable, Assigning, Reconciling or NotReady.
    protocol_type: `consumer` for consumers, `connect` for workers of Connect; "" if the group has never had members.
    protocol, leader: the assignor, and the id of the leading member, of a classic group; None for others.
    epoch: the group epoch; the generation of a classic group; -1 if only its offsets were written.
    assignment_epoch: the epoch of the target assignment; None for a classic group.
    state_timestamp: when a classic group changed its state, in milliseconds; -1 if it is unknown.
    """

    group_id: str
    type: GroupType
    state: str
    protocol_type: str
    protocol: str | None = None
    leader: str | None = None
    epoch: int = -1
    assignment_epoch: int | None = None
    state_timestamp: int = -1
    members: tuple[GroupMember, ...] = ()

    def owners(self) -> dict[TopicPartition, list[GroupMember]]:
        """Return the members that own each assigned partition. Only share groups have several."""
        found: dict[TopicPartition, list[GroupMember]] = {}
        for member in self.members:
            for one in member.assignment:
                found.setdefault(one, []).append(member)
        return found
