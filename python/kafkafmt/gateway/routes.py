"""Which broker answers a request: by its API, and by the group or transactional id at its start."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import Enum

from kafka.protocol.api_key import ApiKey

from kafkafmt.server.errors import MalformedRequestError
from kafkafmt.server.heads import Head, read_varint
from kafkafmt.server.wire import api_name

_NULL = -1


class Broker(Enum):
    """Which broker answers an API."""

    ANY = "any"
    LEADER = "leader"
    GROUP = "group"
    TRANSACTION = "transaction"
    CONTROLLER = "controller"


class _Key(Enum):
    """Where the key of a coordinator is in a request: a group or a transactional id."""

    FIRST = "the first field"
    SECOND = "the second field; the first is a string, too"
    IN_ARRAY = "the first field of the first element of the array that is the first field"


_COORDINATORS: Mapping[int, tuple[Broker, _Key]] = {
    **dict.fromkeys(
        (
            ApiKey.OffsetCommit,
            ApiKey.OffsetFetch,
            ApiKey.JoinGroup,
            ApiKey.Heartbeat,
            ApiKey.LeaveGroup,
            ApiKey.SyncGroup,
            ApiKey.OffsetDelete,
            ApiKey.ConsumerGroupHeartbeat,
            ApiKey.ShareGroupHeartbeat,
            ApiKey.StreamsGroupHeartbeat,
            ApiKey.AlterShareGroupOffsets,
            ApiKey.DeleteShareGroupOffsets,
        ),
        (Broker.GROUP, _Key.FIRST),
    ),
    **dict.fromkeys(
        (
            ApiKey.DescribeGroups,
            ApiKey.DeleteGroups,
            ApiKey.ConsumerGroupDescribe,
            ApiKey.ShareGroupDescribe,
            ApiKey.StreamsGroupDescribe,
            ApiKey.DescribeShareGroupOffsets,
        ),
        (Broker.GROUP, _Key.IN_ARRAY),
    ),
    ApiKey.TxnOffsetCommit: (Broker.GROUP, _Key.SECOND),
    **dict.fromkeys(
        (ApiKey.InitProducerId, ApiKey.AddPartitionsToTxn, ApiKey.AddOffsetsToTxn, ApiKey.EndTxn),
        (Broker.TRANSACTION, _Key.FIRST),
    ),
    ApiKey.DescribeTransactions: (Broker.TRANSACTION, _Key.IN_ARRAY),
}
_LEADERS = frozenset(
    (
        ApiKey.Produce,
        ApiKey.Fetch,
        ApiKey.ListOffsets,
        ApiKey.DeleteRecords,
        ApiKey.OffsetForLeaderEpoch,
        ApiKey.DescribeProducers,
        ApiKey.ShareFetch,
        ApiKey.ShareAcknowledge,
    )
)
_CONTROLLERS = frozenset(
    (
        ApiKey.CreateTopics,
        ApiKey.DeleteTopics,
        ApiKey.CreatePartitions,
        ApiKey.CreateAcls,
        ApiKey.DeleteAcls,
        ApiKey.AlterConfigs,
        ApiKey.IncrementalAlterConfigs,
        ApiKey.ElectLeaders,
        ApiKey.AlterPartitionReassignments,
        ApiKey.ListPartitionReassignments,
        ApiKey.AlterClientQuotas,
        ApiKey.AlterUserScramCredentials,
        ApiKey.UpdateFeatures,
        ApiKey.CreateDelegationToken,
        ApiKey.RenewDelegationToken,
        ApiKey.ExpireDelegationToken,
        ApiKey.UnregisterBroker,
    )
)
# From these versions on the first field is an array: OffsetFetch for several groups (KIP-709), and AddPartitionsToTxn
# for several transactions, which only brokers send (KIP-890).
_ARRAYS_FROM = {ApiKey.OffsetFetch: 8, ApiKey.AddPartitionsToTxn: 4}


def broker_of(api_key: int) -> Broker:
    """Return which broker answers an API."""
    if api_key in _COORDINATORS:
        return _COORDINATORS[api_key][0]
    if api_key in _LEADERS:
        return Broker.LEADER
    return Broker.CONTROLLER if api_key in _CONTROLLERS else Broker.ANY


def coordinator_key(frame: bytes | bytearray | memoryview, head: Head) -> str | None:
    """Return the group or the transactional id whose coordinator answers a request; None if it names none.

    If it names several, the client has sent it to the coordinator of all. Raises MalformedRequestError.
    """
    key = _COORDINATORS[head.api_key][1]
    position = head.body
    if key is _Key.IN_ARRAY or head.version >= _ARRAYS_FROM.get(ApiKey(head.api_key), head.version + 1):
        count, position = _read_length(frame, position, head, ">i")
        if count < 1:
            return None
    elif key is _Key.SECOND:
        _, position = _read_string(frame, position, head)
    return _read_string(frame, position, head)[0]


def _read_string(frame: bytes | bytearray | memoryview, position: int, head: Head) -> tuple[str | None, int]:
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
