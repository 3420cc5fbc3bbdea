"""Which brokers answer a request: by its API, and by the group or transactional id at its start.

`ROUTES` has every API that brokers of Kafka 4.3 offer to clients, and those that only other brokers send.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from kafka.protocol.api_key import ApiKey

from kafkafmt.server.errors import MalformedRequestError
from kafkafmt.server.heads import Head, read_varint
from kafkafmt.server.wire import api_name

_NULL = -1


class Broker(Enum):
    """Which broker answers an API, if the client's connection stands for the whole cluster.

    OWN: the broker of the client's listener. Without a listener for each broker the request does not name it.
    GATEWAY: the gateway itself, because the request is about the client's connection.
    BETWEEN: none. Brokers send the request to each other, so it is not offered.
    """

    ANY = "any"
    LEADER = "the leader of each partition"
    GROUP = "the coordinator of each group"
    TRANSACTION = "the coordinator of each transactional id"
    CONTROLLER = "the controller, or a broker that passes requests on to it"
    NAMED = "the broker that a resource names; any for other resources"
    EVERY = "every broker; the answers are merged"
    OWN = "the broker of its listener"
    GATEWAY = "none: the gateway answers itself"
    BETWEEN = "none"


class _Key(Enum):
    """Where the key of a coordinator is in a request: a group or a transactional id."""

    FIRST = "the first field"
    SECOND = "the second field; the first is a string, too"
    IN_ARRAY = "the first field of the first element of the array that is the first field"


class Route(NamedTuple):
    """The broker of an API. key: where the request has the key of the coordinator."""

    broker: Broker
    key: _Key | None = None


_ANY, _LEADER = Route(Broker.ANY), Route(Broker.LEADER)
_GROUP, _GROUPS = Route(Broker.GROUP, _Key.FIRST), Route(Broker.GROUP, _Key.IN_ARRAY)
_TRANSACTION = Route(Broker.TRANSACTION, _Key.FIRST)
_CONTROLLER, _NAMED = Route(Broker.CONTROLLER), Route(Broker.NAMED)
_EVERY, _OWN, _BETWEEN = Route(Broker.EVERY), Route(Broker.OWN), Route(Broker.BETWEEN)
_GATEWAY = Route(Broker.GATEWAY)

ROUTES: Mapping[int, Route] = {
    ApiKey.Produce: _LEADER,
    ApiKey.Fetch: _LEADER,
    ApiKey.ListOffsets: _LEADER,
    ApiKey.Metadata: _ANY,
    ApiKey.OffsetCommit: _GROUP,
    ApiKey.OffsetFetch: _GROUP,
    ApiKey.FindCoordinator: _ANY,
    ApiKey.JoinGroup: _GROUP,
    ApiKey.Heartbeat: _GROUP,
    ApiKey.LeaveGroup: _GROUP,
    ApiKey.SyncGroup: _GROUP,
    ApiKey.DescribeGroups: _GROUPS,
    ApiKey.ListGroups: _EVERY,
    ApiKey.SaslHandshake: _GATEWAY,
    ApiKey.ApiVersions: _GATEWAY,
    ApiKey.CreateTopics: _CONTROLLER,
    ApiKey.DeleteTopics: _CONTROLLER,
    ApiKey.DeleteRecords: _LEADER,
    ApiKey.InitProducerId: _TRANSACTION,
    ApiKey.OffsetForLeaderEpoch: _LEADER,
    ApiKey.AddPartitionsToTxn: _TRANSACTION,
    ApiKey.AddOffsetsToTxn: _TRANSACTION,
    ApiKey.EndTxn: _TRANSACTION,
    ApiKey.WriteTxnMarkers: _LEADER,
    ApiKey.TxnOffsetCommit: Route(Broker.GROUP, _Key.SECOND),
    ApiKey.DescribeAcls: _ANY,
    ApiKey.CreateAcls: _CONTROLLER,
    ApiKey.DeleteAcls: _CONTROLLER,
    ApiKey.DescribeConfigs: _NAMED,
    ApiKey.AlterConfigs: _NAMED,
    ApiKey.AlterReplicaLogDirs: _OWN,
    ApiKey.DescribeLogDirs: _OWN,
    ApiKey.SaslAuthenticate: _GATEWAY,
    ApiKey.CreatePartitions: _CONTROLLER,
    ApiKey.CreateDelegationToken: _CONTROLLER,
    ApiKey.RenewDelegationToken: _CONTROLLER,
    ApiKey.ExpireDelegationToken: _CONTROLLER,
    ApiKey.DescribeDelegationToken: _ANY,
    ApiKey.DeleteGroups: _GROUPS,
    ApiKey.ElectLeaders: _CONTROLLER,
    ApiKey.IncrementalAlterConfigs: _NAMED,
    ApiKey.AlterPartitionReassignments: _CONTROLLER,
    ApiKey.ListPartitionReassignments: _CONTROLLER,
    ApiKey.OffsetDelete: _GROUP,
    ApiKey.DescribeClientQuotas: _ANY,
    ApiKey.AlterClientQuotas: _CONTROLLER,
    ApiKey.DescribeUserScramCredentials: _ANY,
    ApiKey.AlterUserScramCredentials: _CONTROLLER,
    ApiKey.DescribeQuorum: _ANY,
    ApiKey.UpdateFeatures: _CONTROLLER,
    ApiKey.DescribeCluster: _ANY,
    ApiKey.DescribeProducers: _LEADER,
    ApiKey.UnregisterBroker: _CONTROLLER,
    ApiKey.DescribeTransactions: Route(Broker.TRANSACTION, _Key.IN_ARRAY),
    ApiKey.ListTransactions: _EVERY,
    ApiKey.ConsumerGroupHeartbeat: _GROUP,
    ApiKey.ConsumerGroupDescribe: _GROUPS,
    ApiKey.GetTelemetrySubscriptions: _ANY,
    ApiKey.PushTelemetry: _ANY,
    ApiKey.ListConfigResources: _ANY,
    ApiKey.DescribeTopicPartitions: _ANY,
    ApiKey.ShareGroupHeartbeat: _GROUP,
    ApiKey.ShareGroupDescribe: _GROUPS,
    ApiKey.ShareFetch: _LEADER,
    ApiKey.ShareAcknowledge: _LEADER,
    ApiKey.AddRaftVoter: _CONTROLLER,
    ApiKey.RemoveRaftVoter: _CONTROLLER,
    ApiKey.StreamsGroupHeartbeat: _GROUP,
    ApiKey.StreamsGroupDescribe: _GROUPS,
    ApiKey.DescribeShareGroupOffsets: _GROUPS,
    ApiKey.AlterShareGroupOffsets: _GROUP,
    ApiKey.DeleteShareGroupOffsets: _GROUP,
    **dict.fromkeys(
        (
            ApiKey.LeaderAndIsr,
            ApiKey.StopReplica,
            ApiKey.UpdateMetadata,
            ApiKey.ControlledShutdown,
            ApiKey.InitializeShareGroupState,
            ApiKey.ReadShareGroupState,
            ApiKey.WriteShareGroupState,
            ApiKey.DeleteShareGroupState,
            ApiKey.ReadShareGroupStateSummary,
        ),
        _BETWEEN,
    ),
}
# From these versions on the first field is an array: OffsetFetch for several groups (KIP-709), and AddPartitionsToTxn
# for several transactions, which only brokers send (KIP-890).
_ARRAYS_FROM = {ApiKey.OffsetFetch: 8, ApiKey.AddPartitionsToTxn: 4}


def broker_of(api_key: int) -> Broker:
    """Return which broker answers an API; any for an API that is newer than the table."""
    return ROUTES.get(api_key, _ANY).broker


def coordinator_key(frame: bytes | bytearray | memoryview, head: Head) -> str | None:
    """Return the group or the transactional id whose coordinator answers a request; None if it names none.

    If it names several, it is the first. Raises MalformedRequestError.
    """
    key = ROUTES[head.api_key].key
    position = head.body
    if key is _Key.IN_ARRAY or head.version >= _ARRAYS_FROM.get(ApiKey(head.api_key), head.version + 1):
        count, position = _read_length(frame, position, head, ">i")
        if count < 1:
            return None
    elif key is _Key.SECOND:
        _, position = read_string(frame, position, head)
    return read_string(frame, position, head)[0]


def read_string(frame: bytes | bytearray | memoryview, position: int, head: Head) -> tuple[str | None, int]:
    """Read a string of a request. Returns it, or None for null, and the position after it."""
    size, position = _read_length(frame, position, head, ">h")
    if size == _NULL:
        return None, position
    end = position + size
    if size < 0 or end > len(frame):
        raise _malformed(head, position, f"a string of {size} bytes, {len(frame) - position} are left")
    try:
        return bytes(frame[position:end]).decode(), end
    except UnicodeDecodeError:
        raise _malformed(head, position, "a string that is not UTF-8") from None


def _read_length(
    frame: bytes | bytearray | memoryview, position: int, head: Head, layout: str
) -> tuple[int, int]:
    if head.is_flexible:
        value, position = read_varint(frame, position)
        return value - 1, position
    end = position + struct.calcsize(layout)
    if end > len(frame):
        raise _malformed(head, position, "its end")
    return struct.unpack_from(layout, frame, position)[0], end


def _malformed(head: Head, position: int, found: str) -> MalformedRequestError:
    return MalformedRequestError(
        f"{api_name(head.api_key)} v{head.version}: byte {position}: expected a string, found {found}"
    )
